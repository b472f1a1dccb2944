"""The exchange of rows by experts, on the host backend and on GPUs."""

from __future__ import annotations

import pytest
from conftest import Checks, run_checks
from test_raw import names

pytestmark = [pytest.mark.library, pytest.mark.torch]


@pytest.fixture(scope="module", params=["host", pytest.param("nccl", marks=pytest.mark.gpus(2))])
def checks(request: pytest.FixtureRequest) -> Checks:
    on_gpu = request.param == "nccl"
    env = {"SYMMEM_TEST_BACKEND": request.param}
    return run_checks("routes.py", 2, fresh=on_gpu, env=env, timeout=100)


@pytest.mark.parametrize("name", names("routes.py"))
def test_routes(checks: Checks, name: str) -> None:
    checks.verify(name)
