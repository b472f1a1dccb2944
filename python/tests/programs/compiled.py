"""Tests collectives in compiled code."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from harness import RANK, SIZE, check, main, raises

import symmem

# Inductor detects vector instructions with six more processes that import PyTorch, on
# every rank. These tensors are too small to need them.
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "0"

LONGEST = 60.0
TOTAL = SIZE * (SIZE + 1) / 2


@check
def symmem_initializes() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=LONGEST))
    symmem.init(backend="host", timeout=LONGEST)
    assert "torch._dynamo" not in sys.modules, "importing the compiler takes seconds"


ALL = ("", "aot_eager", "inductor")


def compilations(
    function: Callable[..., Any], backends: tuple[str, ...] = ALL[:2]
) -> Iterator[Callable[..., Any]]:
    """Yield a function itself and compiled. A missing autograd kernel is an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*autograd kernel was not registered.*")
        for backend in backends:
            torch._dynamo.reset()
            yield torch.compile(function, backend=backend, fullgraph=True) if backend else function


FUNCTIONAL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "all_reduce": lambda x: torch.ops.symmem.all_reduce(x, "sum", "world"),
    "all_gather_into_tensor": lambda x: torch.ops.symmem.all_gather_into_tensor(x, "world"),
    "reduce_scatter_tensor": lambda x: torch.ops.symmem.reduce_scatter_tensor(x, "sum", "world"),
}


@check
def operators_reject_backward_passes() -> None:
    def maximum(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.ops.symmem.all_reduce(x @ w, "max", "world") * 2

    x = torch.full((SIZE, 4), float(RANK + 1))
    for run in compilations(maximum, ALL):
        w = torch.ones(4, 4, requires_grad=True)
        y = run(x, w)  # weights that require gradients are not an error by themselves
        assert y.eq(8.0 * SIZE).all(), y
        e = raises(symmem.UnsupportedError, y.sum().backward)
        assert "all_reduce with the reduction max" in str(e), e
        assert "symmem.functional" in str(e), e
        assert "detach" in str(e), e
        assert w.grad is None
        loss = run(x, w).detach().sum() + w.sum()
        loss.backward()
        assert w.grad.eq(1).all()


@check
def one_compilation_supports_all_lengths() -> None:
    for name, operator in FUNCTIONAL.items():
        torch._dynamo.reset()
        run = torch.compile(
            lambda x, operator=operator: operator(x + 1),
            backend="aot_eager",
            dynamic=True,
            fullgraph=True,
        )
        with torch._dynamo.config.patch(error_on_recompile=True):
            for rows in (2 * SIZE, 3 * SIZE, 4 * SIZE):
                x = torch.full((rows, 3), float(RANK))
                assert run(x).eq(operator(x + 1)).all(), (name, rows)


@check
def in_place_calls_reject_backward_passes() -> None:
    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        symmem.all_reduce(y)
        return y * 3

    x = torch.full((4, 4), float(RANK + 1))
    for run in compilations(layer, ALL):
        w = torch.ones(4, 4, requires_grad=True)
        y = run(x, w)
        assert y.eq(12 * TOTAL).all()
        e = raises(symmem.UnsupportedError, y.sum().backward)
        assert "writes in place" in str(e), e
        assert w.grad is None


@check
def calls_with_unused_results_are_kept() -> None:
    def layer(x: torch.Tensor) -> torch.Tensor:
        rows = [torch.empty(4) for _ in range(SIZE)] if RANK == 0 else None
        symmem.gather(x, rows, 0)
        part, total = torch.empty(4), x + 0
        symmem.scatter(part, rows, 0)
        symmem.reduce(total, 1)
        unused = symmem.functional.broadcast(x * 2, 1)
        return part if RANK == 0 else total + unused if RANK == 1 else total

    x = torch.full((4,), float(RANK + 1))
    for run in compilations(layer, ALL):
        got = run(x)
        want = {0: 1.0, 1: TOTAL + 4}.get(RANK, RANK + 1)
        assert got.eq(want).all(), got


@check
def asynchronous_calls_return_a_finished_work() -> None:
    def layer(x: torch.Tensor) -> torch.Tensor:
        y = x + 0
        work = symmem.all_reduce(y, async_op=True)
        out = y.new_empty(SIZE * y.shape[0])
        other = symmem.all_gather_into_tensor(out, y, async_op=True)
        work.wait()
        other.wait()
        if not work.is_completed():
            raise AssertionError("it is under way")
        return out + 1

    for run in compilations(layer):
        assert run(torch.full((8,), float(RANK + 1))).eq(TOTAL + 1).all()


@check
def compiled_code_accepts_process_groups_and_names() -> None:
    pairs = [dist.new_group([r, r + 1]) for r in range(0, SIZE, 2)]
    mine = pairs[RANK // 2]
    ours = symmem.group(mine)
    name = mine.group_name
    first = RANK // 2 * 2

    def layer(x: torch.Tensor) -> torch.Tensor:
        y = x + 0
        symmem.all_reduce(y, group=mine)
        symmem.broadcast(y, src=first + 1, group=mine)
        symmem.all_reduce(y, group=name)
        symmem.all_reduce(y, group=ours)
        out = y.new_empty(2 * y.shape[0])
        symmem.all_gather_into_tensor(out, y, group=mine)
        return torch.ops.symmem.all_gather_into_tensor(out, name)

    for run in compilations(layer):
        got = run(torch.full((3,), float(RANK)))
        assert got.shape == (12,)
        assert got.eq(4 * (2 * first + 1)).all(), got


@check
def messages_run_between_graphs() -> None:
    peer = RANK ^ 1

    def layer(x: torch.Tensor) -> torch.Tensor:
        first, second = x + 1, x + 2
        received = torch.zeros_like(x)
        works = [symmem.irecv(received, peer, tag=1), symmem.isend(first, peer, tag=1)]
        for work in works:
            work.wait()
        if RANK % 2 == 0:
            symmem.send(second, peer)
            source = peer
        else:
            source = symmem.recv(second)
        return received * 10 + second + source

    x = torch.full((3,), float(RANK))
    for backend in ("", "aot_eager"):
        torch._dynamo.reset()
        got = (torch.compile(layer, backend=backend) if backend else layer)(x)
        sent = RANK + 2 if RANK % 2 == 0 else peer + 2
        assert got.eq((peer + 1) * 10 + sent + peer).all(), got
    torch._dynamo.reset()
    whole = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert "symmem.irecv is not an operator" in str(raises(RuntimeError, lambda: whole(x)))
    torch._dynamo.reset()


if __name__ == "__main__":
    main()
