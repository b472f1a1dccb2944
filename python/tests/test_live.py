"""Tests the live view of ranks that symmem.init starts."""

from __future__ import annotations

import shutil
import socket
import tempfile

import pytest
from conftest import run_checks

NAMES = ["ranks_are_served", "unauthorized_requests_are_rejected"]

pytestmark = [pytest.mark.library, pytest.mark.torch]


def test_live_view() -> None:
    with socket.create_server(("localhost", 0)) as listener:
        address = f"localhost:{listener.getsockname()[1]}"
    folder = tempfile.mkdtemp(dir="/tmp")  # socket paths must be short
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
