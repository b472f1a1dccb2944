"""Tests checked pads on real processes."""

from __future__ import annotations

import pytest
from conftest import Checks, Start, run_checks
from test_raw import names

pytestmark = pytest.mark.library


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def checks(request: pytest.FixtureRequest) -> Checks:
    return run_checks("checked_pads.py", request.param)


@pytest.mark.parametrize("name", names("checked_pads.py"))
def test_checked_pads(checks: Checks, name: str) -> None:
    checks.verify(name)


def test_a_killed_rank_is_named(start: Start) -> None:
    *survivors, killed = start("checked_pads.py", 3, "killed")
    assert killed.code == -9, killed
    for result in survivors:
        assert (result.code, result.out) == (0, "END [2] True True\n"), result
