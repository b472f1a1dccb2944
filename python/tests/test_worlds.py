"""Tests the ways to specify the ranks of `symmem.init`, on the host backend."""

from __future__ import annotations

import pytest
from conftest import Checks, run_checks
from test_raw import names

pytestmark = [pytest.mark.library, pytest.mark.torch]


@pytest.fixture(scope="module")
def checks() -> Checks:
    return run_checks("worlds.py", 4)


@pytest.mark.parametrize("name", names("worlds.py"))
def test_worlds(checks: Checks, name: str) -> None:
    checks.verify(name)
