"""What type checkers and people see of the package."""

from __future__ import annotations

import builtins
import importlib.util
import re
import sys

import pytest
from processes import HERE, PROGRAMS, run

import symmem


class NoCheckerError(Exception):
    """mypy is not installed."""


@pytest.mark.torch
@pytest.mark.skipif(
    importlib.util.find_spec("mypy") is None,
    reason=f"{NoCheckerError.__name__}: mypy is not installed",
)
def test_mistakes_are_found_by_mypy_and_programs_pass() -> None:
    # By the configuration of scripts/lint.sh, so that PyTorch, which takes a minute, is read once.
    program = str(PROGRAMS / "typed.py")
    found = run(sys.executable, "-m", "mypy", program, limit=200, cwd=HERE.parents[1])
    assert found.code == 0, found.out + found.err


def test_only_what_is_public_is_listed() -> None:
    assert {*dir(symmem)} == {*symmem.__all__, "InterruptedError", "TimeoutError"}
    for name in dir(symmem):
        assert getattr(symmem, name).__doc__ is not None


def test_importing_everything_hides_no_name_of_python() -> None:
    assert {*symmem.__all__} & {*dir(builtins)} == set()
    assert issubclass(symmem.TimeoutError, TimeoutError)
    assert issubclass(symmem.InterruptedError, InterruptedError)


def test_no_name_ends_in_an_underscore() -> None:
    """In PyTorch that stands for a function that works in place."""
    assert [name for name in dir(symmem) if re.search(r"[a-z]_$", name)] == []
