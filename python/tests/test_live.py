"""Tests the live view of ranks that symmem.init starts."""

from __future__ import annotations

import tempfile

import pytest
from conftest import run_checks
from processes import held_port

NAMES = ["ranks_are_served", "unauthorized_requests_are_rejected"]

pytestmark = [pytest.mark.library, pytest.mark.torch]


def test_live_view() -> None:
    # The paths of sockets must be short.
    with held_port() as port, tempfile.TemporaryDirectory(dir="/tmp") as folder:
        checks = run_checks(
            "live.py",
            2,
            env={
                "SYMMEM_HTTP": f"localhost:{port}",
                "SYMMEM_HTTP_TOKEN": "a-token-of-the-test",
                "TMPDIR": folder,
            },
        )
    for name in NAMES:
        checks.verify(name)
