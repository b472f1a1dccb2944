"""Kernels that device_peers.py times. This module needs kraken."""

from __future__ import annotations

import triton
from kraken._ptx_utils import symm_mem_sync

import symmem.triton as checked


@triton.jit
def checked_many(pad, times):  # type: ignore[no-untyped-def]
    """Waits for all ranks some times, with checks."""
    for _ in range(times):
        checked.barrier(pad, triton.language.program_id(0), 1)


@triton.jit
def kraken_many(pads, times, rank: triton.language.constexpr, size: triton.language.constexpr):  # type: ignore[no-untyped-def]
    """Waits for all ranks some times, as kraken does."""
    for _ in range(times):
        symm_mem_sync(pads, None, rank, size, True, True)
