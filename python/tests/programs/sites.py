"""Tests the call sites in errors: of calls, a helper's callers, and PyTorch operators."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from harness import RANK, SIZE, check, main, raises

import symmem

LONGEST = 200
"""The allowed difference between the ranks' compile times on a busy machine, in seconds."""

LINES = int(os.environ["SYMMEM_CALLSITES"])
HERE = os.path.abspath(__file__)


@check
def symmem_initializes() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=LONGEST))


def line_of(marker: str) -> int:
    """Return the number of the line of this file that ends with a comment."""
    with open(__file__, encoding="utf-8") as file:
        return next(n for n, line in enumerate(file, 1) if line.endswith(f"# {marker}\n"))


def sites(call: Callable[[torch.Tensor], Any]) -> dict[int, list[str]]:
    """Make mismatched calls in a new world, and return each rank's call sites."""
    symmem.init(backend="host", timeout=LONGEST, check="every")
    x = symmem.full((8,), 1.0)
    part = x[: 8 - RANK]
    error = raises(symmem.DivergenceError, partial(call, part))
    del x, part
    symmem.finalize(force=True)
    return {rank: s.site.split(" > ") for s in error.sides for rank in s.ranks}


def helper(x: torch.Tensor) -> None:
    symmem.all_reduce(x)  # the helper


def operator(x: torch.Tensor) -> None:
    torch.ops.symmem.all_reduce_(x, "sum", "world")  # the operator


class Layer(torch.nn.Module):
    """A layer whose frames alternate with PyTorch's frames."""

    def forward(self, x: torch.Tensor) -> None:
        helper(x)  # the layer


def one_caller(x: torch.Tensor) -> None:
    helper(x)  # one caller


def another_caller(x: torch.Tensor) -> None:
    helper(x)  # another caller


def verify(found: dict[int, list[str]], *lines: str) -> None:
    """Expect that all ranks' call sites end with the given lines, as far as recorded."""
    want = [f"{os.path.basename(HERE)}:{line_of(line)}" for line in lines]
    for rank in range(SIZE):
        assert len(found[rank]) <= LINES, found
        have = [os.path.basename(site) for site in found[rank]]
        assert have[-len(want) :] == want[-LINES:], (rank, found, want)
        assert found[rank][-1].startswith(HERE), found


@check
def a_helper_is_shown_after_its_callers() -> None:
    verify(sites(one_caller), "one caller", "the helper")
    verify(sites(another_caller), "another caller", "the helper")


@check
def frames_of_pytorch_are_omitted() -> None:
    verify(sites(operator), "the operator")
    verify(sites(Layer()), "the layer", "the helper")


@check
def a_compiled_function_is_shown_by_its_first_line() -> None:
    def twice(x: torch.Tensor) -> None:  # the compiled function
        symmem.all_reduce(x)
        symmem.all_reduce(x)

    compiled = torch.compile(twice, backend="aot_eager", fullgraph=True)

    def call(x: torch.Tensor) -> None:
        compiled(x)  # the compiled call

    verify(sites(call), "the compiled call", "the compiled function")


@check
def tensors_and_values_have_call_sites() -> None:
    def differ(_: torch.Tensor) -> None:
        made(1 << (10 + RANK))  # the tensor
        symmem.check()

    verify(sites(differ), "the tensor", "the allocation")

    def disagree(_: torch.Tensor) -> None:
        for i in range(2):
            agreed(i)
        agreed(RANK)  # the value

    verify(sites(disagree), "the value", "the comparison")


def made(size: int) -> torch.Tensor:
    return symmem.empty(size)  # the allocation


def agreed(value: int) -> None:
    symmem.agree(value, "a value")  # the comparison


@check
def warnings_show_the_line_of_the_program() -> None:
    symmem.init(backend="host", timeout=LONGEST)
    inside = symmem.group([0]) if RANK == 0 else [0]
    x = torch.ones(3)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            symmem.all_reduce(x, group=inside)  # a rank outside
    assert len(seen) == (RANK > 0), [str(w.message) for w in seen]
    for one in seen:
        assert (one.filename, one.lineno) == (__file__, line_of("a rank outside"))
    symmem.finalize()


if __name__ == "__main__":
    main()
