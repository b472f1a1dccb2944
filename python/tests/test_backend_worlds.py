"""Tests process groups of the backend "symmem" with a default group of another one."""

from __future__ import annotations

import pytest
from conftest import Checks, run_checks
from test_backend import LIMIT
from test_raw import names

pytestmark = [pytest.mark.library, pytest.mark.torch]


@pytest.fixture(scope="module")
def checks(built: None) -> Checks:
    return run_checks("backend_worlds.py", 4, timeout=LIMIT)


@pytest.mark.parametrize("name", names("backend_worlds.py"))
def test_backend_worlds(checks: Checks, name: str) -> None:
    checks.verify(name)
