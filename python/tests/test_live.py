"""The live view of ranks that symmem.init opens."""

from __future__ import annotations

import shutil
import socket
import tempfile

import pytest
from conftest import run_checks

NAMES = ["ranks_are_served", "requests_without_rights_are_refused"]

pytestmark = [pytest.mark.library, pytest.mark.torch]


def test_live_view() -> None:
    with socket.create_server(("localhost", 0)) as listener:
        address = f"localhost:{listener.getsockname()[1]}"
    folder = tempfile.mkdtemp(dir="/tmp")  # the paths of sockets must be short
    try:
        checks = run_checks(
            "live.py",
            2,
            env={
                "SYMMEM_HTTP": address,
                "SYMMEM_HTTP_TOKEN": "a-token-of-the-test",
                "TMPDIR": folder,
            },
        )
    finally:
        shutil.rmtree(folder)
    for name in NAMES:
        checks.verify(name)
