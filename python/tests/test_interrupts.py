"""Tests that a signal ends any wait in Python."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Start

pytestmark = pytest.mark.library

PROGRAM = "interrupts.py"

SOON = 3.0
"""How many seconds a wait may go on after its signal. On a machine with nothing else to do it takes
0.1 to 0.6, and the ranks' timeout is 60."""

PLACES = (
    "init",
    "group",
    "scope",
    "reserve",
    "trim",
    "check",
    "set_check",
    "set_path",
    "collective",
    "barrier",
    "finalize",
)


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("where", PLACES)
def test_an_interrupt_ends_a_wait(start: Start, tmp_path: Path, where: str, who: int) -> None:
    results = start(PROGRAM, 2, where, str(who), str(tmp_path))
    assert [r.code for r in results] == [0, 0], results
    found = re.search(r"^INTERRUPTED ([\d.]+)$", results[who].out, re.M)
    assert found, results[who]
    assert float(found[1]) < SOON
    if where == "init":
        assert "OPEN False" in results[who].out
    if where not in ("init", "group", "finalize"):
        # The group has failed on all its ranks.
        for result in results:
            assert "AFTER AbortedError" in result.out, results
            assert f"group world: aborted by rank {who}" in result.out, results


def test_a_handler_that_returns_does_not_end_the_wait(start: Start, tmp_path: Path) -> None:
    first, second = start(PROGRAM, 2, "handled", "0", str(tmp_path))
    assert first.out == "SUM 3.0 [True]\n", first
    assert second.out == "SUM 3.0 []\n", second


def test_a_handler_can_wait_while_a_wait_is_interrupted(start: Start, tmp_path: Path) -> None:
    for result in start(PROGRAM, 2, "nested", "0", str(tmp_path)):
        assert result.out == "GROUP 2\nSUM 3.0\n", result
        assert "Exception ignored" not in result.err, result


@pytest.mark.parametrize("where", ["late", "late on a thread"])
def test_a_warning_names_late_ranks_during_the_wait(
    start: Start, tmp_path: Path, where: str
) -> None:
    first, second = start(PROGRAM, 2, where, "0", str(tmp_path))
    lines = first.out.splitlines()
    assert lines[0] == "WARNED [1] True True", first
    assert lines[-1] == "SUM 3.0", first
    assert (second.code, second.out) == (0, ""), second


def test_a_warning_raised_as_an_error_ends_the_wait(start: Start, tmp_path: Path) -> None:
    first, _ = start(PROGRAM, 2, "late is an error", "0", str(tmp_path))
    assert first.out == "RAISED [1]\n", first
