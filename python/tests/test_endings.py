"""Tests how programs exit on real processes: no hang, no crash, clear messages."""

from __future__ import annotations

import pytest
from conftest import Start

pytestmark = [pytest.mark.library, pytest.mark.torch]

PROGRAM = "endings.py"
LOST = "Fatal Python error"


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "forked"])
def test_a_program_exits_with_live_tensors(start: Start, fresh: bool) -> None:
    for result in start(PROGRAM, 2, "live_tensors", fresh=fresh):
        assert (result.code, result.out) == (0, "END 2.0\n"), result
        assert LOST not in result.err
        assert "fatal error" not in result.err


def test_a_program_exits_inside_a_scope(start: Start) -> None:
    for result in start(PROGRAM, 2, "open_scope", fresh=True):
        assert (result.code, result.out) == (7, "END\n"), result
        assert "fatal error" not in result.err


def test_an_exception_in_a_scope_is_a_lost_rank_for_the_others(start: Start) -> None:
    first, second = start(PROGRAM, 2, "exception")
    assert second.code == 1
    assert "KeyError: 'a mistake of rank 1'" in second.err
    assert first.code == 3, first
    assert "END RankLostError [1]" in first.out


@pytest.mark.parametrize(
    ("where", "one", "other"),
    [
        ("init", "", ""),
        ("all_reduce", "", "END AbortedError\n"),
        ("wait", "AFTER 2.0\n", "END 2.0\n"),
    ],
)
def test_an_interrupt_ends_a_wait(start: Start, where: str, one: str, other: str) -> None:
    first, second = start(PROGRAM, 2, "interrupt", where)
    assert (first.code, first.out) == (0, "END KeyboardInterrupt True\n" + one), first
    assert "fatal error" not in first.err
    assert (second.code, second.out) == (0, other), second


def test_signal_handlers_of_the_program_still_run(start: Start) -> None:
    for result in start(PROGRAM, 2, "handler"):
        assert (result.code, result.out) == (0, "END True\n"), result


def test_the_process_group_can_be_destroyed_first(start: Start) -> None:
    for result in start(PROGRAM, 2, "group_first"):
        assert (result.code, result.out) == (0, "END\n"), result


@pytest.mark.parametrize("scoped", ["in a scope", "outside"])
@pytest.mark.parametrize("level", ["registration", "every"])
def test_an_extra_tensor_is_a_divergence_that_names_the_lines(
    start: Start, level: str, scoped: str
) -> None:
    for result in start(PROGRAM, 2, "diverge", level, scoped):
        assert "END DivergenceError True" in result.out, result


def test_a_divergence_through_garbage_collection_is_explained(start: Start) -> None:
    for result in start(PROGRAM, 2, "collected"):
        assert result.out == "END DivergenceError True\n", result


def test_data_loader_workers_get_errors(start: Start) -> None:
    for result in start(PROGRAM, 2, "loader"):
        assert (result.code, result.out) == (0, "END True True\n"), result


def test_a_tensor_survives_a_forced_close(start: Start) -> None:
    for result in start(PROGRAM, 2, "forced"):
        want = "END ClosedError 6.0 2.0 True\nAFTER 4.0\n"
        assert (result.code, result.out) == (0, want), result


@pytest.mark.parametrize("timeout", [[], ["1.5"]], ids=["of the process group", "given"])
def test_a_rank_that_does_not_initialize_is_named(start: Start, timeout: list[str]) -> None:
    first, second = start(PROGRAM, 2, "absent", *timeout)
    assert "END AbsentError [1] True opening symmem: waited" in first.out, first
    assert (second.code, second.out) == (0, "END\n"), second


def test_a_rank_that_does_not_arrive_is_named(start: Start) -> None:
    first, second = start(PROGRAM, 2, "late")
    assert "END TimeoutError [1]" in first.out, first
    assert second.code == 0, second


def test_a_killed_rank_affects_only_its_worlds(start: Start) -> None:
    *survivors, killed = start(PROGRAM, 3, "lost_world")
    assert killed.code == -9, killed
    for result in survivors:
        assert (result.code, result.out) == (0, "END RankLostError [2]\nENGINE 4.0 None\n"), result
