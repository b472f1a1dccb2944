"""The fused norms, on the host backend and on GPUs."""

from __future__ import annotations

import shutil

import pytest
from conftest import Checks, run_checks
from test_compiled import NoCompilerError
from test_raw import names

pytestmark = [
    pytest.mark.library,
    pytest.mark.torch,
    pytest.mark.skipif(
        not (shutil.which("g++") or shutil.which("clang++")),
        reason=f"{NoCompilerError.__name__}: inductor needs g++ or clang++",
    ),
]


PROGRAMS = ("norms.py", "scattered_norms.py")


@pytest.fixture(scope="module", params=["host", pytest.param("nccl", marks=pytest.mark.gpus(2))])
def checks(request: pytest.FixtureRequest) -> dict[str, Checks]:
    on_gpu = request.param == "nccl"
    env = {"SYMMEM_TEST_BACKEND": request.param}
    return {
        program: run_checks(program, 2, fresh=on_gpu, env=env, timeout=200) for program in PROGRAMS
    }


@pytest.mark.parametrize(
    ("program", "name"), [(program, name) for program in PROGRAMS for name in names(program)]
)
def test_norms(checks: dict[str, Checks], program: str, name: str) -> None:
    checks[program].verify(name)
