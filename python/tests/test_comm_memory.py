"""Tests buffers of DDP and FSDP2 on real processes."""

from __future__ import annotations

import pytest
from conftest import Checks, run_checks
from test_raw import names

pytestmark = [pytest.mark.library, pytest.mark.torch]


@pytest.fixture(scope="module", params=["0", "1"], ids=["off", "on"])
def checks(request: pytest.FixtureRequest, built: None) -> Checks:
    return run_checks("comm_memory.py", 2, env={"SYMMEM_COMM_MEMORY": request.param}, timeout=200)


@pytest.mark.parametrize("name", names("comm_memory.py"))
def test_comm_memory(checks: Checks, name: str) -> None:
    checks.verify(name)
