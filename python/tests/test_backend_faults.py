"""Errors, timeouts and signals in the backend of torch.distributed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Checks, Start, run_checks
from test_backend import built
from test_interrupts import SOON
from test_raw import names

pytestmark = [pytest.mark.library, pytest.mark.torch]

__all__ = ["built"]

PLACES = ("call", "work", "earlier work", "message", "monitored barrier")


@pytest.fixture(scope="module")
def checks(built: None) -> Checks:
    return run_checks("backend_faults.py", 2)


@pytest.mark.parametrize("name", names("backend_faults.py"))
def test_backend_faults(checks: Checks, name: str) -> None:
    checks.verify(name)


@pytest.mark.parametrize("where", PLACES)
def test_an_interrupt_ends_a_wait_of_the_backend(
    built: None, start: Start, tmp_path: Path, where: str
) -> None:
    results = start("backend_interrupts.py", 2, where, str(tmp_path))
    assert [r.code for r in results] == [0, 0], results
    found = re.search(r"^INTERRUPTED ([\d.]+)$", results[0].out, re.M)
    assert found, results[0]
    assert float(found[1]) < SOON
    if where in ("work", "message"):
        assert "AFTER ok" in results[0].out, results  # the wait is repeated
