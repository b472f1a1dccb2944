"""Compares uneven and rooted operations with those of torch.distributed with gloo."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from harness import RANK, SIZE, check, main, raises

import symmem

SIZES = [(rank % 3) * 700 for rank in range(SIZE)]


@check
def symmem_initializes() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    symmem.init(backend="host", timeout=20)


def part(rank: int, rows: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(rows * 3).reshape(rows, 3) % 50 + rank).to(dtype)


@check
def parts_of_different_sizes_are_gathered() -> None:
    for dtype in (torch.float32, torch.int8, torch.complex64, torch.bfloat16):
        want = torch.cat([part(r, n, dtype) for r, n in enumerate(SIZES)])
        out = torch.zeros_like(want)
        assert symmem.all_gather_v(out, part(RANK, SIZES[RANK], dtype), SIZES) is None
        assert out.equal(want)
    turned = torch.zeros(3, sum(SIZES)).t()
    work = symmem.all_gather_v(turned, part(RANK, SIZES[RANK]), SIZES, async_op=True)
    assert work is not None
    work.wait()
    assert turned.equal(torch.cat([part(r, n) for r, n in enumerate(SIZES)]))


def parts(of: int, sizes: list[int], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Return the tensors for all ranks of a rank, whose shapes differ."""
    return [part(of, n, dtype) * (to + 1) for to, n in enumerate(sizes)]


@check
def lists_are_gathered_and_exchanged() -> None:
    for sizes in (SIZES, [300] * SIZE):
        for dtype in (torch.float32, torch.int8, torch.complex64, torch.bfloat16):
            wants = [part(r, n, dtype) for r, n in enumerate(sizes)]
            got = [torch.zeros_like(want) for want in wants]
            got[-1] = torch.zeros(3, sizes[-1], dtype=dtype).t()
            mine = part(RANK, sizes[RANK], dtype)
            assert symmem.all_gather(got, mine) is None
            assert all(a.equal(b) for a, b in zip(got, wants, strict=True))
            wants = [parts(r, sizes, dtype)[RANK] for r in range(SIZE)]
            got = [torch.zeros_like(want) for want in wants]
            work = symmem.all_to_all(got, parts(RANK, sizes, dtype), async_op=True)
            assert work is not None
            work.wait()
            assert all(a.equal(b) for a, b in zip(got, wants, strict=True))


@check
def lists_are_reduced() -> None:
    for sizes in (SIZES, [300] * SIZE):
        for dtype in (torch.float32, torch.complex64):
            want = sum(parts(r, sizes, dtype)[RANK] for r in range(SIZE))
            out = torch.zeros(sizes[RANK], 3, dtype=dtype)
            assert symmem.reduce_scatter(out, parts(RANK, sizes, dtype)) is None
            assert out.equal(want)
    symmem.reduce_scatter(out, parts(RANK, sizes, dtype), "premul_sum:0.5")
    assert out.equal(want * 0.5)
    factor = partial(symmem.reduce_scatter, part(RANK, SIZES[RANK]), parts(RANK, SIZES))
    raises(symmem.UnsupportedError, partial(factor, "premul_sum:0.5"))


@check
def compiled_lists_are_those_of_the_calls() -> None:
    def run(x: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        got = [torch.zeros(n, 3) for n in SIZES]
        symmem.all_gather(got, x)
        rows, same = torch.zeros_like(x), torch.zeros(300, 3)
        symmem.reduce_scatter(rows, inputs, "max")
        symmem.reduce_scatter(same, [x.new_ones(300, 3)] * SIZE)
        received = [torch.zeros_like(x) for _ in SIZES]
        symmem.all_to_all(received, inputs)
        return [*got, rows, same, *received]

    arguments = part(RANK, SIZES[RANK]), parts(RANK, SIZES)
    found = torch.compile(run, backend="aot_eager", fullgraph=True)(*arguments)
    assert all(a.equal(b) for a, b in zip(found, run(*arguments), strict=True))


@check
def invalid_lists_are_rejected_before_the_call() -> None:
    x, lists = part(RANK, SIZES[RANK]), parts(RANK, SIZES)
    raises(symmem.InvalidError, partial(symmem.all_gather, lists[1:], x))
    raises(symmem.InvalidError, partial(symmem.all_gather, lists, x.int()))
    raises(symmem.InvalidError, partial(symmem.all_gather, lists, torch.zeros(1)))
    raises(symmem.InvalidError, partial(symmem.reduce_scatter, x, lists[1:]))
    raises(symmem.InvalidError, partial(symmem.reduce_scatter, torch.zeros(1), lists))
    raises(symmem.InvalidError, partial(symmem.all_to_all, lists, lists[1:]))
    raises(symmem.InvalidError, partial(symmem.all_to_all, [], []))
    shared = [torch.zeros(1).expand(n) for n in SIZES]
    e = raises(symmem.InvalidError, partial(symmem.all_gather, shared, torch.zeros(SIZES[RANK])))
    assert str(e).startswith("elements of a tensor of tensor_list share memory"), e
    for call in (symmem.all_gather, symmem.reduce_scatter, symmem.all_to_all):
        raises(symmem.InvalidError, partial(call, [1.0] * SIZE, x))  # type: ignore[operator]
        raises(symmem.InvalidError, partial(call, x, [1.0] * SIZE))  # type: ignore[operator]
    symmem.barrier()


@check
def tensors_of_different_types_are_gathered_in_one_call() -> None:
    types = (torch.float32, torch.int8, torch.complex64, torch.bfloat16, torch.int64)
    inputs = [part(RANK, SIZES[RANK], dtype) for dtype in types]
    wants = [torch.cat([part(r, n, dtype) for r, n in enumerate(SIZES)]) for dtype in types]
    outputs = [torch.zeros_like(want) for want in wants]
    outputs[1] = torch.zeros(3, sum(SIZES), dtype=torch.int8).t()
    assert symmem.all_gather_v_list(outputs, inputs, SIZES) is None
    assert all(out.equal(want) for out, want in zip(outputs, wants, strict=True))
    once = [torch.zeros_like(wants[0])]
    work = symmem.all_gather_v_list(once, inputs[:1], SIZES, async_op=True)
    assert work is not None
    work.wait()
    assert once[0].equal(wants[0])
    torch.ops.symmem.all_gather_v_list_(once, inputs[:1], SIZES, "world")
    gathers = partial(symmem.all_gather_v_list, outputs, inputs)
    raises(symmem.InvalidError, partial(gathers, SIZES[1:]))
    raises(symmem.InvalidError, partial(symmem.all_gather_v_list, outputs[1:], inputs, SIZES))
    raises(symmem.InvalidError, partial(symmem.all_gather_v_list, [], [], SIZES))
    raises(symmem.InvalidError, partial(symmem.all_gather_v_list, once, [None], SIZES))
    raises(symmem.InvalidError, partial(symmem.all_gather_v_list, wants[::-1], inputs, SIZES))


@check
def parts_of_different_sizes_are_reduced() -> None:
    whole = torch.cat([part(RANK, n) for n in SIZES])
    out = torch.zeros(SIZES[RANK], 3)
    symmem.reduce_scatter_v(out, whole, SIZES)
    assert out.equal(sum(part(r, SIZES[RANK]) for r in range(SIZE)))
    symmem.reduce_scatter_v(out, whole, SIZES, "max")
    assert out.equal(part(SIZE - 1, SIZES[RANK]))


@check
def invalid_sizes_are_rejected_before_the_call() -> None:
    x, y = part(RANK, SIZES[RANK]), torch.zeros(sum(SIZES), 3)
    for sizes in (SIZES[1:], [*SIZES, 0], [n + 1 for n in SIZES]):
        raises(symmem.InvalidError, partial(symmem.all_gather_v, y, x, sizes))
        raises(symmem.InvalidError, partial(symmem.reduce_scatter_v, x, y, sizes))
    raises(symmem.InvalidError, partial(symmem.all_gather_v, y, x.int(), SIZES))


@check
def reduce_writes_only_to_the_root() -> None:
    for root in range(SIZE):
        x, y = part(RANK, 5), part(RANK, 5)
        symmem.reduce(x, root)
        dist.reduce(y, root)
        assert x.equal(y if root == RANK else part(RANK, 5))
        symmem.reduce(z := part(RANK, 5), op=dist.ReduceOp.MAX, group_dst=root)
        assert z.equal(part(SIZE - 1 if root == RANK else RANK, 5))
    raises(symmem.InvalidError, partial(symmem.reduce, x))
    raises(symmem.InvalidError, partial(symmem.reduce, x, SIZE))


@check
def gather_and_scatter_use_one_root() -> None:
    for root in range(SIZE):
        for rows in (0, 1, 4000):
            want = [part(r, rows) for r in range(SIZE)]
            whole = [torch.zeros(rows, 3) for _ in want] if root == RANK else None
            symmem.gather(want[RANK], whole, root)
            assert whole is None or all(a.equal(b) for a, b in zip(whole, want, strict=True))
            turned = torch.zeros(3, rows).t()
            symmem.scatter(turned, whole, root)
            assert turned.equal(want[RANK])
    out = torch.zeros(2, 3)
    parts = [part(r, 2) for r in range(SIZE)] if RANK == 0 else None
    work = symmem.scatter(out, parts, async_op=True)
    assert work is not None
    work.wait()
    assert out.equal(part(RANK, 2))


@check
def only_the_root_may_pass_a_list() -> None:
    x, whole = part(RANK, 2), [part(r, 2) for r in range(SIZE)]
    wrong = [whole, [x]] if RANK else [None, whole[1:], [x.int()] * SIZE, [x[:1]] * SIZE]
    for parts in wrong:
        raises(symmem.InvalidError, partial(symmem.gather, x, parts, 0))
        raises(symmem.InvalidError, partial(symmem.scatter, x, parts, 0))
    raises(symmem.InvalidError, partial(symmem.gather, x, None, 0, group_dst=0))


@check
def different_sizes_on_ranks_raise_divergence_error() -> None:
    sizes = [1] * SIZE
    if RANK == 0:
        sizes[SIZE - 1] = 2
    x, y = torch.ones(1), torch.zeros(sum(sizes))
    error = raises(symmem.DivergenceError, partial(symmem.all_gather_v, y, x, sizes))
    assert "counts 1" in str(error), error


if __name__ == "__main__":
    main()
