"""Tests the package's types and public names."""

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
def test_mypy_finds_mistakes_and_accepts_programs() -> None:
    # Use the configuration of scripts/lint.sh, whose cache saves a minute of analyzing PyTorch.
    program = str(PROGRAMS / "typed.py")
    found = run(sys.executable, "-m", "mypy", program, limit=200, cwd=HERE.parents[1])
    assert found.code == 0, found.out + found.err


def test_dir_lists_only_public_names() -> None:
    assert {*dir(symmem)} == {*symmem.__all__, "InterruptedError", "TimeoutError"}
    for name in dir(symmem):
        assert getattr(symmem, name).__doc__ is not None


def test_star_import_hides_no_builtin() -> None:
    assert {*symmem.__all__} & {*dir(builtins)} == set()
    assert issubclass(symmem.TimeoutError, TimeoutError)
    assert issubclass(symmem.InterruptedError, InterruptedError)


def test_no_name_ends_in_an_underscore() -> None:
    """In PyTorch, such names denote in-place functions."""
    assert [name for name in dir(symmem) if re.search(r"[a-z]_$", name)] == []
