"""Computes deterministic reductions with PyTorch on the CPU.

The formula is that of docs/reference/deterministic.md.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer types by size in bytes."""

_SMALL = {torch.float64: 20, torch.float32: 10, torch.float16: 18, torch.bfloat16: 20}
"""The binary orders of magnitude between canceling numbers and those of other ranks."""


def reduced(formula: str, op: str, parts: list[torch.Tensor]) -> torch.Tensor:
    """Reduce one tensor per rank, in group order."""
    if len(parts) == 1 and op != "premul_sum":
        return parts[0].clone()
    dtype = parts[0].dtype
    if dtype in UNSIGNED:
        return _reduced_unsigned(op, parts)
    floats = dtype.is_floating_point
    wide = torch.float32 if floats and dtype.itemsize == 2 else dtype
    x = [p.to(wide) for p in parts]
    if op == "premul_sum":
        x = [part * FACTOR for part in x]
        if formula == "rounded-tree":
            x = [part.to(dtype).to(wide) for part in x]
    total = _combine(formula, op, x, dtype)
    if op == "avg":
        total = _average(formula, x, total, dtype)
    result = total.to(dtype)
    if floats:
        bits = BITS[dtype.itemsize]
        result.view(bits)[result.isnan()] = torch.iinfo(bits).max
    return result


FACTOR = 0.75
"""The factor of a premul_sum."""

UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""The types for which PyTorch has no arithmetic on the CPU."""

_INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": operator.add,
    "avg": operator.add,
    "prod": operator.mul,
    "min": min,
    "max": max,
    "band": operator.and_,
    "bor": operator.or_,
    "bxor": operator.xor,
}


def _reduced_unsigned(op: str, parts: list[torch.Tensor]) -> torch.Tensor:
    """Reduce unsigned integers as Python integers, which do not overflow."""
    dtype = parts[0].dtype
    modulus = 1 << 8 * dtype.itemsize
    divisor = len(parts) if op == "avg" else 1
    values = zip(*(p.tolist() for p in parts), strict=True)
    results = [functools.reduce(_INTEGERS[op], x) % modulus // divisor for x in values]
    return torch.tensor(results, dtype=dtype)


def _average(
    formula: str, x: list[torch.Tensor], total: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Divide by a tensor, because for a number PyTorch may multiply. Rescale on overflow."""
    count = torch.full_like(total, len(x))
    if not dtype.is_floating_point:
        return torch.div(total, count, rounding_mode="trunc")
    scale = 0.5 ** (len(x) - 1).bit_length()
    again = _combine(formula, "sum", [part * scale for part in x], dtype) / (count * scale)
    return torch.where(total.isfinite(), total / count, again)


def _combine(formula: str, op: str, x: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    half = len(x) // 2
    if half and formula != "ranks":
        made = _pair(
            op, _combine(formula, op, x[:half], dtype), _combine(formula, op, x[half:], dtype)
        )
        return made.to(dtype).to(made.dtype) if formula == "rounded-tree" else made
    total = x[0]
    for part in x[1:]:
        total = _pair(op, total, part)
    return total


BITWISE = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}
"""The reductions that only integers support."""


def _pair(op: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if op in BITWISE:
        return BITWISE[op](a, b)
    if op in ("sum", "avg", "premul_sum"):
        return a + b
    if op == "prod":
        return a * b
    if op not in ("min", "max"):
        raise NotImplementedError(op)
    chosen = torch.minimum(a, b) if op == "min" else torch.maximum(a, b)
    if not a.dtype.is_floating_point:
        return chosen
    # For minimum and maximum, -0 is less than +0.
    bits = BITS[a.dtype.itemsize]
    i, j = a.view(bits), b.view(bits)
    return torch.where(a == b, (i | j if op == "min" else i & j).view(a.dtype), chosen)


def contributed(dtype: torch.dtype, seed: int, rank: int, ranks: int, count: int) -> torch.Tensor:
    """Return the input of a rank of a group, which is the same in every run.

    For most elements, two ranks have opposite numbers, and the others have numbers so small that
    the sum depends on when the two cancel. The rest are random bits and special values.
    """
    common = torch.Generator().manual_seed(seed << 12)
    own = torch.Generator().manual_seed(seed << 12 | rank + 1)
    size = count * dtype.itemsize
    anything = torch.randint(256, (size,), dtype=torch.uint8, generator=own).view(dtype)
    if not dtype.is_floating_point:
        return anything
    normal = torch.randn(count, dtype=torch.float64, generator=own)
    exponent = torch.randint(-150, 150, (count,), generator=own)
    chosen = torch.randint(1 << 30, (count,), generator=own)
    values = _specials(dtype)
    kind = torch.randint(8, (count,), generator=common)
    result = _cancelling(dtype, common, normal, rank, ranks).to(dtype)
    result = torch.where(kind == 5, torch.ldexp(normal, exponent).to(dtype), result)
    result = torch.where(kind == 6, anything, result)
    return torch.where(kind == 7, values[chosen % len(values)], result)


def _cancelling(
    dtype: torch.dtype, common: torch.Generator, normal: torch.Tensor, rank: int, ranks: int
) -> torch.Tensor:
    count = len(normal)
    big = 1 + torch.rand(count, generator=common).double()
    big = torch.ldexp(big, torch.randint(8, 14, (count,), generator=common))
    plus = torch.randint(ranks, (count,), generator=common)
    minus = (plus + 1 + torch.randint(max(1, ranks - 1), (count,), generator=common)) % ranks
    other = big * normal * 2.0 ** -_SMALL[dtype]
    return torch.where(plus == rank, big, torch.where(minus == rank, -big, other))


def _specials(dtype: torch.dtype) -> torch.Tensor:
    """Return zeros, one, the smallest and largest numbers, infinities and a NaN."""
    f = torch.finfo(dtype)
    inf = float("inf")
    listed = [0.0, f.smallest_normal, 1.0, f.max, inf]
    values = torch.tensor([*listed, *(-v for v in listed), float("nan")], dtype=dtype)
    bits = BITS[dtype.itemsize]
    largest = int(values[1:2].view(bits)) - 1
    subnormal = torch.tensor([1, largest], dtype=bits).view(dtype)
    return torch.cat([values, subnormal, -subnormal])


def compared(got: torch.Tensor, want: torch.Tensor) -> tuple[int, float, float]:
    """Return the number of elements with different bits, and the largest and mean difference."""
    bits = BITS[got.dtype.itemsize]
    wrong = got.view(bits) != want.view(bits)
    most = torch.finfo(torch.float32).max  # JSON does not support infinity
    apart = (got.double() - want.double()).abs().nan_to_num(most, most).clamp(max=most)
    apart = torch.where(wrong, apart, 0.0)
    return int(wrong.sum()), float(apart.max()), float(apart.mean())
