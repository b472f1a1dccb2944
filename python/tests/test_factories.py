"""Tests PyTorch's factory functions in scopes, on real processes."""

from __future__ import annotations

import pytest
from conftest import Checks, run_checks
from test_raw import names

pytestmark = [pytest.mark.library, pytest.mark.torch]


@pytest.fixture(scope="module")
def checks() -> Checks:
    return run_checks("factories.py", 2, timeout=200)


@pytest.mark.parametrize("name", names("factories.py"))
def test_factories(checks: Checks, name: str) -> None:
    checks.verify(name)
