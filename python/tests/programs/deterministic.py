"""Tests that reductions return the bits of a formula, on the host backend."""

from __future__ import annotations

import itertools
import os
from functools import partial
from typing import Any

import torch
from formula import BITWISE, FACTOR, compared, contributed, reduced
from harness import RANK, SIZE, check, main, raises

import symmem
from symmem._c.constants import TYPES
from symmem._c.terms import Reduction

FLOATS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}
"""The types, and integer types of the same size."""

NANS = {torch.int64: (1 << 63) - 1, torch.int32: 0x7FFFFFFF, torch.int16: 0x7FFF}


def inputs(dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    """Return each rank's input: large numbers of both signs, and small ones."""
    made = []
    for rank in range(SIZE):
        draws = torch.Generator().manual_seed(1000 * count + rank)
        large = torch.randn(count, generator=draws) * 1000 * (1 - 2 * (rank % 2))
        made.append((large + torch.randn(count, generator=draws)).to(dtype))
    return made


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Return whether two tensors have the same bits."""
    bits = FLOATS[got.dtype]
    return got.view(bits).equal(want.view(bits))


def summed(values: torch.Tensor, symmetric: bool = True) -> torch.Tensor:
    """All-reduce a copy of this rank's input."""
    if not symmetric:
        result = values.clone()
    else:
        with symmem.use():
            result = symmem.empty(values.shape, dtype=values.dtype)
        result.copy_(values)
    symmem.all_reduce(result)
    return result


@check
def symmem_initializes_with_a_formula() -> None:
    mistake: Any = "sorted"
    raises(symmem.InvalidError, lambda: symmem.init(backend="host", deterministic=mistake))
    asked = None if "SYMMEM_DETERMINISTIC" in os.environ else True
    symmem.init(backend="host", deterministic=asked, timeout=20)
    formula = symmem.stats()["formula"]
    assert formula == os.environ.get("SYMMEM_DETERMINISTIC", "ranks")
    other: Any = "any" if asked is None else "tree"
    raises(symmem.InvalidError, lambda: symmem.init(deterministic=other))


@check
def sums_have_the_bits_of_the_formula_at_every_size() -> None:
    formula = symmem.stats()["formula"]
    for dtype in FLOATS:
        for count in (1, 7, 1000, 100_003):
            parts = inputs(dtype, count)
            for symmetric in (True, False):
                got = summed(parts[RANK], symmetric)
                want = reduced(formula, "sum", parts)
                assert same(got, want), (dtype, count, symmetric)


@check
def all_types_and_reductions_have_the_bits_of_the_formula() -> None:
    formula = symmem.stats()["formula"]
    for seed, (name, reduction) in enumerate(itertools.product(TYPES, Reduction)):
        op: Any = reduction.name.lower()
        parts = [contributed(getattr(torch, name), seed, r, SIZE, 5000) for r in range(SIZE)]
        with symmem.use():
            tensor = symmem.empty(5000, dtype=parts[0].dtype)
        tensor.copy_(parts[RANK])
        called = f"{op}:{FACTOR}" if op == "premul_sum" else op
        floats = tensor.is_floating_point()
        if floats if op in BITWISE else called != op and not floats:
            raises(symmem.InvalidError, partial(symmem.all_reduce, tensor, called))
            continue
        symmem.all_reduce(tensor, called)
        wrong, most, _ = compared(tensor, reduced(formula, op, parts))
        assert wrong == 0, (name, op, wrong, most)


@check
def subnormals_are_kept_even_if_torch_flushes_them() -> None:
    assert torch.set_flush_denormal(True)
    try:
        for dtype, bits in FLOATS.items():
            for count in (1, 5, 1000, 100_003):
                smallest = torch.full((count,), RANK + 1, dtype=bits).view(dtype)
                got = summed(smallest).view(bits)
                assert got.eq(SIZE * (SIZE + 1) // 2).all(), (dtype, count, got)
        assert torch.tensor([1e-40]).mul(1).eq(0).all(), "this thread no longer flushes subnormals"
    finally:
        torch.set_flush_denormal(False)


@check
def all_nans_have_the_same_bits() -> None:
    for dtype, bits in FLOATS.items():
        values = torch.ones(1000, dtype=dtype)
        values[RANK::SIZE] = float("nan")
        negative = values.view(bits) | torch.tensor(torch.iinfo(bits).min, dtype=bits)
        got = summed(negative.view(dtype)).view(bits)
        assert got.eq(NANS[bits]).all(), (dtype, got)


if __name__ == "__main__":
    main()
