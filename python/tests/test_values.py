"""Tests values that ranks compare on the host, on real processes without PyTorch."""

from __future__ import annotations

import re

import pytest
from conftest import Checks, run_checks
from processes import PROGRAMS

pytestmark = pytest.mark.library


def names(program: str) -> list[str]:
    return re.findall(r"^@check\ndef (\w+)", (PROGRAMS / program).read_text(), re.M)


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def checks(request: pytest.FixtureRequest) -> Checks:
    return run_checks("values.py", request.param)


@pytest.mark.parametrize("name", names("values.py"))
def test_values(checks: Checks, name: str) -> None:
    checks.verify(name)
