"""The fused norm, on GPUs."""

from __future__ import annotations

import pytest
from conftest import Checks, run_checks
from test_raw import names

pytestmark = [pytest.mark.library, pytest.mark.torch, pytest.mark.gpus(2)]


@pytest.fixture(scope="module")
def checks() -> Checks:
    return run_checks("norms.py", 2, fresh=True)


@pytest.mark.parametrize("name", names("norms.py"))
def test_norms(checks: Checks, name: str) -> None:
    checks.verify(name)
