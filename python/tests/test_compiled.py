"""Tests compiled code on real processes."""

from __future__ import annotations

import shutil

import pytest
from conftest import Checks, run_checks
from test_raw import names


class NoCompilerError(Exception):
    """PyTorch's inductor finds no C++ compiler."""


pytestmark = [
    pytest.mark.library,
    pytest.mark.torch,
    pytest.mark.skipif(
        not (shutil.which("g++") or shutil.which("clang++")),
        reason=f"{NoCompilerError.__name__}: inductor needs g++ or clang++",
    ),
]


@pytest.fixture(scope="module")
def checks() -> Checks:
    return run_checks("compiled.py", 2, timeout=200)


@pytest.mark.parametrize("name", names("compiled.py"))
def test_compiled(checks: Checks, name: str) -> None:
    checks.verify(name)
