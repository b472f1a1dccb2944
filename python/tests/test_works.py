"""Tests the works of asynchronous collectives on real processes."""

from __future__ import annotations

import pytest
from conftest import Checks, run_checks
from test_raw import names

pytestmark = [pytest.mark.library, pytest.mark.torch]


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def checks(request: pytest.FixtureRequest) -> Checks:
    return run_checks("works.py", request.param)


@pytest.mark.parametrize("name", names("works.py"))
def test_works(checks: Checks, name: str) -> None:
    checks.verify(name)


def test_ranks_exit_successfully(checks: Checks) -> None:
    for result in checks.results:
        assert result.code == 0, result
