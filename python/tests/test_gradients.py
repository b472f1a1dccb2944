"""Tests collectives with gradients on real processes."""

from __future__ import annotations

import pytest
from conftest import Checks, run_checks
from test_raw import names

pytestmark = [pytest.mark.library, pytest.mark.torch]


@pytest.fixture(scope="module", params=[2, 3])
def checks(request: pytest.FixtureRequest) -> Checks:
    return run_checks("gradients.py", request.param, timeout=200)


@pytest.mark.parametrize("name", names("gradients.py"))
def test_gradients(checks: Checks, name: str) -> None:
    checks.verify(name)
