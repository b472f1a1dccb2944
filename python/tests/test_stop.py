"""Ranks that stop after the same step, on real processes of the host backend."""

from __future__ import annotations

import signal

import pytest
from conftest import Start

pytestmark = pytest.mark.library

PROGRAM = "stop.py"


@pytest.mark.parametrize("way", ["call", "another_thread", "terminated", "own_handler"])
def test_all_ranks_stop_after_the_step_in_which_one_was_asked(start: Start, way: str) -> None:
    for result in start(PROGRAM, 3, way):
        assert (result.code, result.out) == (0, "STOPPED 5 True\n"), result


def test_a_second_signal_ends_the_process(start: Start) -> None:
    *others, last = start(PROGRAM, 3, "terminated_twice")
    assert last.code == -signal.SIGTERM, last
    for result in others:
        assert "RankLostError" in result.err, result


def test_a_signal_ends_a_child_of_fork(start: Start) -> None:
    for result in start(PROGRAM, 2, "child"):
        assert result.out == f"CHILD {-signal.SIGTERM} False\n", result
