"""Tests the plug-ins with the Python files of vLLM's and SGLang's wheels, on real processes."""

from __future__ import annotations

import os
import re
import shutil

import pytest
from conftest import Checks, run_checks
from engine_files import UnreachableError, fetch
from processes import PROGRAMS, SOURCE
from test_raw import names

PROJECT = SOURCE.parents[1] / "pyproject.toml"


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
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The import path of programs: symmem with its entry points, and the engines' files."""
    try:
        files = fetch()
    except UnreachableError as e:
        pytest.skip(f"{UnreachableError.__name__}: {e}")
    installed = tmp_path_factory.mktemp("installed")
    metadata = installed / "symmem-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: symmem\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(entry_points(PROJECT.read_text()))
    return os.pathsep.join(map(str, [SOURCE, PROGRAMS, installed, files]))


def entry_points(project: str) -> str:
    """Convert the entry points of a pyproject.toml to the format of an installed package."""
    found = re.findall(r'^\[project\.entry-points\."(.+)"\]\n(\w+) = "(.+)"$', project, re.M)
    return "".join(f"[{group}]\n{name} = {value}\n" for group, name, value in found)


@pytest.fixture(scope="module")
def vllm(path: str) -> Checks:
    env = {"PYTHONPATH": path, "VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "WARNING"}
    return run_checks("vllm_groups.py", 2, timeout=200, env=env)


@pytest.mark.parametrize("name", names("vllm_groups.py"))
def test_vllm(vllm: Checks, name: str) -> None:
    vllm.verify(name)


@pytest.fixture(scope="module")
def sglang(path: str) -> Checks:
    env = {"PYTHONPATH": path, "SGLANG_USE_CPU_ENGINE": "1", "SGLANG_PLUGINS": "symmem"}
    return run_checks("sglang_groups.py", 2, timeout=200, env=env)


@pytest.mark.parametrize("name", names("sglang_groups.py"))
def test_sglang(sglang: Checks, name: str) -> None:
    sglang.verify(name)


def test_stubs_raise_when_they_are_called() -> None:
    import engine_stubs

    made = engine_stubs.StubModule("xgrammar").Grammar.compile
    with pytest.raises(engine_stubs.StubError, match=r"xgrammar\.Grammar\.compile is a stub"):
        made()
