"""Tests PyTorch's symmetric memory with symmem's allocator, on real processes."""

from __future__ import annotations

import pytest
from conftest import Checks, run_checks
from test_raw import names

pytestmark = [pytest.mark.library, pytest.mark.torch]


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def checks(request: pytest.FixtureRequest, built: None) -> Checks:
    return run_checks("symmetric.py", request.param)


@pytest.mark.parametrize("name", names("symmetric.py"))
def test_symmetric(checks: Checks, name: str) -> None:
    checks.verify(name)
