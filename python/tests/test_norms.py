"""The fused norm, on the host backend and on GPUs."""

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


@pytest.fixture(scope="module", params=["host", pytest.param("nccl", marks=pytest.mark.gpus(2))])
def checks(request: pytest.FixtureRequest) -> Checks:
    on_gpu = request.param == "nccl"
    env = {"SYMMEM_TEST_BACKEND": request.param}
    return run_checks("norms.py", 2, fresh=on_gpu, env=env, timeout=200)


@pytest.mark.parametrize("name", names("norms.py"))
def test_norms(checks: Checks, name: str) -> None:
    checks.verify(name)
