"""Reductions that give the bits of a formula, on real processes."""

from __future__ import annotations

import pytest
from conftest import Checks, run_checks
from test_values import names

pytestmark = [pytest.mark.library, pytest.mark.torch]


@pytest.fixture(
    scope="module",
    params=[(2, None), (3, None), (4, "tree"), (4, "rounded-tree")],
    ids=["2 ranks", "3 ranks", "tree of 4", "rounded tree of 4"],
)
def checks(request: pytest.FixtureRequest) -> Checks:
    ranks, formula = request.param
    environment = {"SYMMEM_DETERMINISTIC": formula} if formula else {}
    return run_checks("deterministic.py", ranks, env=environment)


@pytest.mark.parametrize("name", names("deterministic.py"))
def test_deterministic(checks: Checks, name: str) -> None:
    checks.verify(name)
