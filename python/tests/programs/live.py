"""A world with a live view at the address in SYMMEM_HTTP."""

from __future__ import annotations

import http.client
import json
import os
import time

from harness import RANK, check, main

import symmem

ADDRESS = os.environ["SYMMEM_HTTP"]
TOKEN = os.environ["SYMMEM_HTTP_TOKEN"]
PATIENCE = 60  # seconds


def get(path: str, method: str = "GET", headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Send a request until the address is served, and return status and body."""
    end = time.monotonic() + PATIENCE
    while True:
        connection = http.client.HTTPConnection(ADDRESS, timeout=PATIENCE)
        try:
            connection.request(method, path, headers=headers or {})
            response = connection.getresponse()
            return response.status, response.read()
        except ConnectionError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
        finally:
            connection.close()


@check
def ranks_are_served() -> None:
    symmem.init(backend="host", timeout=PATIENCE)
    symmem.all_reduce(symmem.ones(100))
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    status, body = get("/debug/symmem?events=16", headers=bearer)
    ranks = json.loads(body)["ranks"]
    assert (status, [r["rank"] for r in ranks]) == (200, [0, 1]), body
    assert all(any("recent" in p for p in r["pools"]) for r in ranks), body
    status, body = get("/data.bin", headers=bearer)
    assert (status, body[:7]) == (200, b"SYMPAGE"), (status, body[:99])
    status, body = get("/metrics")
    assert status == 200, body
    assert b'symmem_up{rank="1"} 1' in body, body
    symmem.barrier()  # no rank exits before the other has sent its requests


@check
def unauthorized_requests_are_rejected() -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    for path in ["/", "/data.bin", "/status", "/debug/symmem"]:
        assert get(path)[0] == 401, path
        assert get(path, headers={"Authorization": "Bearer x"})[0] == 401, path
        assert get(path, headers={**bearer, "Host": "evil.example"})[0] == 421, path
        assert get(path, method="POST", headers=bearer)[0] == 405, path
    assert get("/metrics", method="DELETE")[0] == 405
    symmem.barrier()


if __name__ == "__main__":
    assert RANK in (0, 1)
    main()
