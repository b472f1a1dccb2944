"""Tests a PyTorch program with the backend "symmem" from an installed wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import HERE, PROGRAMS, run_ranks
from test_hatch_build import NoHatchlingError

pytestmark = [pytest.mark.library, pytest.mark.torch]


@pytest.fixture(scope="module")
def installed(built: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and install only it."""
    pytest.importorskip(
        "hatchling", reason=f"{NoHatchlingError.__name__}: hatchling is not installed"
    )
    folder = tmp_path_factory.mktemp("wheel")
    environment = {k: v for k, v in os.environ.items() if k != "SYMMEM_TORCH_PYTHONS"}
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, check=True, cwd=HERE.parents[1], env=environment)
    (wheel,) = folder.glob("symmem-*.whl")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    target = folder / "installed"
    subprocess.run([*pip, "--target", str(target), str(wheel)], check=True)
    return target


@pytest.mark.parametrize("backend", ["symmem", "cpu:symmem"])
def test_a_program_can_select_the_backend_by_name(installed: Path, backend: str) -> None:
    env = {"PYTHONPATH": os.pathsep.join([str(installed), str(PROGRAMS)])}
    for result in run_ranks("unchanged.py", 2, backend, timeout=250, env=env, fresh=True):
        assert result.code == 0, result
        assert f"RAN {installed}" in result.out, result
