"""Tests the arguments of collectives on real processes."""

from __future__ import annotations

import pytest
from conftest import Checks, run_checks
from test_raw import names

pytestmark = [pytest.mark.library, pytest.mark.torch]


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def checks(request: pytest.FixtureRequest) -> Checks:
    return run_checks("arguments.py", request.param)


@pytest.mark.parametrize("name", names("arguments.py"))
def test_arguments(checks: Checks, name: str) -> None:
    checks.verify(name)


def test_a_root_is_a_global_rank() -> None:
    checks = run_checks("roots.py", 4)
    for name in names("roots.py"):
        checks.verify(name)


@pytest.mark.parametrize("ranks", [2, 3])
def test_parts_of_different_sizes_and_roots(ranks: int) -> None:
    checks = run_checks("uneven.py", ranks)
    for name in names("uneven.py"):
        checks.verify(name)
