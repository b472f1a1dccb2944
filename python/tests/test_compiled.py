"""Tests compiled code on real processes."""

from __future__ import annotations

import shutil
import sys

import pytest
from conftest import Checks, run_checks
from processes import SOURCE, run
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
    # In a fresh interpreter, it checks that symmem does not import the compiler.
    return run_checks("compiled.py", 2, timeout=200, fresh=True)


@pytest.mark.parametrize("name", names("compiled.py"))
def test_compiled(checks: Checks, name: str) -> None:
    checks.verify(name)


UNOPENED = """
import symmem, torch
for call in (symmem.all_reduce, lambda x: symmem.send(x, 1), lambda x: symmem.recv(x)):
    for whole in (False, True):
        torch._dynamo.reset()
        try:
            torch.compile(call, backend="eager", fullgraph=whole)(torch.ones(4))
        except RuntimeError as e:
            print("call symmem.init" in str(e) and "KeyError" not in str(e))
for call in (symmem.broadcast, symmem.functional.all_reduce):
    torch._dynamo.reset()
    try:
        torch.compile(call, backend="eager", fullgraph=True)(torch.ones(4))
    except RuntimeError as e:
        print("call symmem.init" in str(e) and "super()" not in str(e))
"""


def test_errors_of_compiled_code_before_init_name_it() -> None:
    done = run(sys.executable, "-c", UNOPENED, env={"PYTHONPATH": str(SOURCE)})
    assert (done.code, done.out.split()) == (0, ["True"] * 8), done
