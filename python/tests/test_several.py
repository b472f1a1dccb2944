"""Tests several worlds in one process, and timeouts of groups, on the host backend."""

from __future__ import annotations

import pytest
from conftest import Checks, run_checks
from test_raw import names

pytestmark = [pytest.mark.library, pytest.mark.torch]


@pytest.fixture(scope="module")
def checks() -> Checks:
    return run_checks("several.py", 4)


@pytest.mark.parametrize("name", names("several.py"))
def test_several_worlds(checks: Checks, name: str) -> None:
    checks.verify(name)
