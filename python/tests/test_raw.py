"""Tests the layer below PyTorch on real processes."""

from __future__ import annotations

import re

import pytest
from conftest import Checks, run_checks
from processes import PROGRAMS

pytestmark = pytest.mark.library


def names(program: str) -> list[str]:
    return re.findall(r"^@check\ndef (\w+)", (PROGRAMS / program).read_text(), re.M)


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def checks(request: pytest.FixtureRequest) -> Checks:
    return run_checks("raw.py", request.param)


@pytest.mark.parametrize("name", names("raw.py"))
def test_raw(checks: Checks, name: str) -> None:
    checks.verify(name)
