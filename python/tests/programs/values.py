"""Tests values that ranks compare on the host."""

from __future__ import annotations

import sys
import threading
from functools import partial
from typing import Any

from harness import RANK, SIZE, check, main, raises

import symmem
from symmem._api import values
from symmem._c.constants import Value


def here() -> str:
    """Return the caller's file and line."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@check
def symmem_initializes() -> None:
    symmem.init(backend="host", timeout=20)
    assert "torch" not in sys.modules


@check
def values_are_combined_across_ranks() -> None:
    symmem.agree(7, "batch size")
    symmem.agree(-(1 << 63), "batch size", symmem.world())
    assert symmem.combine(RANK, "rank", "min") == 0
    assert symmem.combine(RANK, "rank", "max") == SIZE - 1
    assert symmem.combine(RANK + 1, "rank", "sum") == SIZE * (SIZE + 1) // 2
    assert symmem.combine(RANK == 0, "first", "any") is True
    assert symmem.combine(RANK == 0, "first", "all") is False
    assert symmem.combine([RANK], "not empty", op="all") is True


@check
def floats_and_strings_are_compared() -> None:
    words = "configuration" * 1000
    for _ in range(3):
        symmem.agree(0.1, "rate")
        symmem.agree(float("nan"), "rate")
        symmem.agree(words, "configuration")
        symmem.agree("\udcff\0", "configuration")
    odd: list[tuple[Any, Any, str]] = [
        (0.5, 0.25, "Agree of 0.25"),
        (1.0, 1, "Agree of 1"),
        (1.0, True, "Agree of 1"),
        ("adam", "sgd", 'Agree of "sgd"'),
        (words, words + "b", 'Agree of "configuration'),
        ("1", 1.0, "Agree of 1.0"),
    ]
    for usual, other, event in odd:
        value = usual if RANK else other
        error = raises(symmem.DivergenceError, lambda value=value: symmem.agree(value, "rate"))
        side = next(s for s in error.sides if 0 in s.ranks)
        assert side.event.startswith(event), error.sides
        assert side.site.startswith(__file__), error.sides
        assert len(error.sides) == 2, error.sides
    wrong: list[Any] = [None, [1], b"1", 1j]
    for value in wrong:
        raises(symmem.InvalidError, partial(symmem.agree, value, "rate"))
    not_whole: Any = 0.5
    raises(symmem.InvalidError, partial(symmem.combine, not_whole, "rate", "sum"))
    unknown: Any = "mean"
    error = raises(symmem.InvalidError, partial(symmem.combine, 1, "rate", unknown))
    assert str(error) == "unknown op 'mean'; want one of any, all, min, max, sum"
    symmem.agree(0.5, "rate")


@check
def different_values_are_reported_and_the_group_stays_usable() -> None:
    for step in range(11):
        symmem.agree(step, "step")
    sites = []
    if RANK == 0:
        sites.append(here().rpartition(":")[2])
        error = raises(symmem.DivergenceError, lambda: symmem.agree(8, "batch size"))
    else:
        sites.append(here().rpartition(":")[2])
        error = raises(symmem.DivergenceError, lambda: symmem.agree(9, "batch size"))
    assert error.data["divergence"]["kind"] == "value", error.data
    mine = next(side for side in error.sides if RANK in side.ranks)
    assert mine.event == f"Agree of {8 if RANK == 0 else 9}", error.sides
    file, _, line = mine.site.rpartition(":")
    assert file == __file__, mine.site
    assert int(line) == int(sites[0]) + 1, (mine.site, sites)
    assert len(mine.before) == 10, mine.before
    assert mine.before[0].startswith('"step": Agree of 10 at ' + __file__), mine.before
    assert 'value "batch size", call 3' in str(error), error
    assert mine.site in str(error), error
    assert symmem.world().error() is None
    symmem.agree(8, "batch size")


@check
def invalid_values_are_rejected() -> None:
    for value in (1 << 63, -(1 << 63) - 1):
        raises(symmem.InvalidError, lambda value=value: symmem.agree(value, "batch size"))
    for name in ("", "n" * 129):
        raises(symmem.InvalidError, lambda name=name: symmem.agree(1, name))
    for operation in (0, max(Value) + 1, -1):
        raises(
            symmem.InvalidError,
            lambda operation=operation: values.combined(operation, 1, "n", None),
        )
    symmem.agree(8, "batch size")


@check
def threads_can_use_names_in_any_order() -> None:
    names = ["first", "second"] if RANK == 0 else ["second", "first"]
    raised: list[BaseException] = []

    def turns(name: str) -> None:
        try:
            for step in range(200):
                symmem.agree(step, name)
        except BaseException as e:
            raised.append(e)

    threads = [threading.Thread(target=turns, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not raised, raised


@check
def different_steps_are_reported() -> None:
    with symmem.step("warm up"):
        pass
    for batch in range(3):
        with symmem.step("decode", batch=batch, shape=(1, 2), kind="greedy", limit=None):
            symmem.agree(batch, "batch size")
    guard = symmem.step("decode", batch=8 if RANK == 0 else 9)

    def enter() -> None:
        with guard:
            raise AssertionError("the step was entered")

    error = raises(symmem.DivergenceError, enter)
    mine = next(side for side in error.sides if RANK in side.ranks)
    assert mine.event == f"decode(batch={8 if RANK == 0 else 9}), after 0 collectives", mine
    assert mine.site.startswith(__file__), mine
    assert mine.before[1].startswith(
        "step decode(batch=2, shape=(1, 2), kind='greedy', limit=None)"
    )
    raises(symmem.InvalidError, lambda: symmem.step("decode", batch={}).__enter__())
    with symmem.step("decode"):
        pass


@check
def a_rank_that_has_left_is_reported() -> None:
    if RANK == SIZE - 1:
        symmem.finalize(force=True)
        raises(symmem.ClosedError, lambda: symmem.agree(1, "batch size"))
        return
    error = raises(symmem.DivergenceError, lambda: symmem.agree(1, "batch size"))
    assert isinstance(error, symmem.DeadlockError), error
    assert list(error.elsewhere) == [SIZE - 1], error


if __name__ == "__main__":
    main()
