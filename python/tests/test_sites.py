"""Tests call sites in errors, on real processes with the host backend."""

from __future__ import annotations

import pytest
from conftest import Checks, run_checks
from test_raw import names

pytestmark = [pytest.mark.library, pytest.mark.torch]


@pytest.fixture(scope="module", params=["1", "3"], ids=["one line", "three lines"])
def checks(request: pytest.FixtureRequest) -> Checks:
    return run_checks("sites.py", 2, env={"SYMMEM_CALLSITES": request.param}, timeout=250)


@pytest.mark.parametrize("name", names("sites.py"))
def test_lines(checks: Checks, name: str) -> None:
    checks.verify(name)
