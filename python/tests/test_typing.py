"""What type checkers and people see of the package."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from processes import PROGRAMS, SOURCE, run

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
    found = run(sys.executable, "-m", "mypy", program, limit=200, cwd=SOURCE.parent)
    assert found.code == 0, found.out + found.err


def test_only_what_is_public_is_listed() -> None:
    assert dir(symmem) == sorted(symmem.__all__)
    for name in symmem.__all__:
        assert getattr(symmem, name).__doc__ is not None
