"""Tests the backend of torch.distributed on real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Checks, run_checks
from processes import SOURCE, run
from test_raw import names

from symmem._torch.pytorch import devices_of

pytestmark = [pytest.mark.library, pytest.mark.torch]

LIMIT = 280.0
"""The time limit of a program, in seconds. On a quiet machine they take 2 to 20; with five times as
many running processes as processors some took more than 100."""

SCRIPTS = Path(__file__).parents[1] / "scripts"

OPERATIONS = [
    "test_DistributedDataParallelCPU",
    "test_all_gather",
    "test_all_gather_coalesced_simple",
    "test_all_reduce_coalesced_sum",
    "test_all_reduce_sum",
    "test_barrier",
    "test_broadcast",
    "test_gather",
    "test_isend",
    "test_reduce_sum",
    "test_scatter",
    "test_send_recv_any_source",
]
"""One PyTorch test for each operation. torch_suite.py without arguments runs all tests."""


class NoExpecttestError(Exception):
    """The package expecttest, which PyTorch's tests need, is not installed."""


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def checks(request: pytest.FixtureRequest, built: None) -> Checks:
    return run_checks("backend.py", request.param, timeout=LIMIT)


@pytest.mark.parametrize("name", names("backend.py"))
def test_backend(checks: Checks, name: str) -> None:
    checks.verify(name)


@pytest.mark.parametrize("size", [2, 3])
def test_python_process_group(size: int) -> None:
    checks = run_checks("backend_python.py", size, timeout=LIMIT)
    names = set(checks.ranks[0])
    assert {"all_reduce", "one_warning_is_logged"} <= names
    for name in names:
        checks.verify(name)


def test_ranks_exit_normally(checks: Checks) -> None:
    for result in checks.results:
        assert result.code == 0, result


def test_cpp_backend_uses_no_python_symbols(built: None) -> None:
    for file in (SOURCE / "symmem" / "_backend").glob("*.so"):
        table = subprocess.run(
            ["nm", "-D", "--undefined-only", file], check=True, capture_output=True, text=True
        ).stdout
        assert [word for word in table.split() if word.lstrip("_").startswith("Py")] == []


def test_groups_are_separate_worlds(built: None) -> None:
    checks = run_checks("groups.py", 3, timeout=LIMIT)
    for name in names("groups.py"):
        checks.verify(name)


def test_pytorch_suite_passes(built: None) -> None:
    pytest.importorskip(
        "expecttest", reason=f"{NoExpecttestError.__name__}: expecttest is not installed"
    )
    path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(SCRIPTS / "torch_suite.py"), *OPERATIONS]
    result = run(*command, limit=LIMIT, env={**os.environ, "PYTHONPATH": path})
    assert result.code == 0, result
    assert f"{len(OPERATIONS)} passed, 0 failed" in result.out, result


def test_devices_match_the_new_process_group() -> None:
    class Config:
        def get_device_backend_map(self) -> dict[str, str]:
            return {"cpu": "symmem", "cuda": "nccl"}

    def create() -> frozenset[str]:
        return devices_of("symmem")

    def new_group() -> frozenset[str]:
        backend_config = Config()
        found = create()
        assert backend_config
        return found

    assert new_group() == {"cpu"}
    assert create() == {"cpu", "cuda"}


def test_models_train_as_with_gloo(built: None) -> None:
    checks = run_checks("models.py", 2, timeout=LIMIT)
    models = list(checks.ranks[0])
    assert "fsdp2" in models
    for model in models:
        checks.verify(model)
