"""Tests PyTorch tensors on real processes."""

from __future__ import annotations

import pytest
from conftest import Checks, run_checks
from test_raw import names

pytestmark = [pytest.mark.library, pytest.mark.torch]


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def checks(request: pytest.FixtureRequest) -> Checks:
    return run_checks("tensors.py", request.param)


@pytest.mark.parametrize("name", names("tensors.py"))
def test_tensors(checks: Checks, name: str) -> None:
    checks.verify(name)
