"""Tests messages and uneven exchanges on real processes."""

from __future__ import annotations

import pytest
from conftest import Checks, run_checks
from test_raw import names

pytestmark = [pytest.mark.library, pytest.mark.torch]


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def checks(request: pytest.FixtureRequest) -> Checks:
    # SYMMEM_TEST_MIB=64 exchanges 64 MiB between each pair.
    return run_checks("messages.py", request.param, timeout=200)


@pytest.mark.parametrize("name", names("messages.py"))
def test_messages(checks: Checks, name: str) -> None:
    checks.verify(name)
