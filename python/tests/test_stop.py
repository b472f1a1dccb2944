"""Tests that ranks stop after the same step, on real processes with the host backend."""

from __future__ import annotations

import signal

import pytest
from conftest import Start

pytestmark = pytest.mark.library

PROGRAM = "stop.py"


@pytest.mark.parametrize(
    "way", ["call", "another_thread", "terminated", "terminated_twice", "own_handler"]
)
def test_all_ranks_stop_after_the_step_with_the_request(start: Start, way: str) -> None:
    for result in start(PROGRAM, 3, way):
        assert (result.code, result.out) == (0, "STOPPED 5 True\n"), result


def test_a_signal_terminates_a_forked_child(start: Start) -> None:
    for result in start(PROGRAM, 2, "child"):
        assert result.out == f"CHILD {-signal.SIGTERM} False\n", result
