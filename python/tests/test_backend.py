"""The backend of torch.distributed, on real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Checks, run_checks
from processes import SOURCE
from test_raw import names

pytestmark = [pytest.mark.library, pytest.mark.torch]

SCRIPT = Path(__file__).parents[1] / "scripts" / "backend.sh"


@pytest.fixture(scope="module")
def built() -> None:
    subprocess.run([SCRIPT, sys.executable], check=True)


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def checks(request: pytest.FixtureRequest, built: None) -> Checks:
    return run_checks("backend.py", request.param)


@pytest.mark.parametrize("name", names("backend.py"))
def test_backend(checks: Checks, name: str) -> None:
    checks.verify(name)


def test_ranks_exit_normally(checks: Checks) -> None:
    for result in checks.results:
        assert result.code == 0, result


def test_the_part_in_cpp_uses_no_symbol_of_python(built: None) -> None:
    for file in (SOURCE / "symmem" / "_backend").glob("*.so"):
        table = subprocess.run(
            ["nm", "-D", "--undefined-only", file], check=True, capture_output=True, text=True
        ).stdout
        assert [word for word in table.split() if word.lstrip("_").startswith("Py")] == []


def test_groups_are_worlds(built: None) -> None:
    checks = run_checks("groups.py", 3)
    for name in names("groups.py"):
        checks.verify(name)


def test_models_learn_as_with_gloo(built: None) -> None:
    checks = run_checks("models.py", 2, timeout=200)
    models = list(checks.ranks[0])
    assert "fsdp2" in models
    for model in models:
        checks.verify(model)
