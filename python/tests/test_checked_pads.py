"""Tests checked pads on real processes."""

from __future__ import annotations

import pytest
from conftest import Checks, run_checks
from test_raw import names

pytestmark = pytest.mark.library


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def checks(request: pytest.FixtureRequest) -> Checks:
    return run_checks("checked_pads.py", request.param)


@pytest.mark.parametrize("name", names("checked_pads.py"))
def test_checked_pads(checks: Checks, name: str) -> None:
    checks.verify(name)
