"""Tests PyTorch's symmetric memory with symmem's allocator on GPUs, and handles in a kernel.

symmetric.py operators|inductor|handles|faults
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import common
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import triton
import triton.language as tl
from common import DEVICE, RANK, SIZE, attempt, say, settle, verdict

import symmem

EVERY = list(range(SIZE))
Tensor = torch.Tensor


def numbers(n: int, rank: int = RANK, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Return small numbers that differ between ranks and have exact sums."""
    return ((torch.arange(n, device=DEVICE) % 13) + rank).to(dtype)


def total(n: int) -> Tensor:
    """Return the sum of all ranks' numbers."""
    parts = torch.stack([numbers(n, rank).float() for rank in EVERY])
    return parts.sum(0).bfloat16()


def begin() -> None:
    """Initialize NCCL's groups, symmem, and PyTorch's symmetric memory with symmem's allocator."""
    common.distributed()
    symmem.init(backend="nccl", timeout=15)
    symmem.use_symm_mem()
    verdict("the backend is SYMMEM", symm_mem.get_backend(DEVICE) == "SYMMEM")
    memory = torch._C._distributed_c10d._SymmetricMemory
    kind = torch._C._autograd.DeviceType.CUDA
    verdict("no multicast", not memory.has_multicast_support(kind, DEVICE.index))


def symmetric(n: int) -> tuple[Tensor, Any]:
    """Return a symmetric tensor of the numbers, and its handle."""
    x = symm_mem.empty(n, dtype=torch.bfloat16, device=DEVICE)
    handle = symm_mem.rendezvous(x, dist.group.WORLD)
    x.copy_(numbers(n))
    return x, handle


def operators() -> None:
    """Run PyTorch's own kernels, eager and captured, and time them."""
    begin()
    name = dist.group.WORLD.group_name
    ops = torch.ops.symm_mem
    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "one_shot_all_reduce": lambda x: ops.one_shot_all_reduce(x, "sum", name),
        "two_shot_all_reduce_": lambda x: ops.two_shot_all_reduce_(x, "sum", name),
    }
    for n in (1024, 64 * 1024, 1024 * 1024):
        x, handle = symmetric(n)
        for call, run in calls.items():

            def check(run: Any = run, call: str = call, n: int = n, x: Tensor = x) -> None:
                good = []
                for _ in range(3):
                    x.copy_(numbers(n))
                    settle()
                    good.append(torch.equal(run(x), total(n)))
                    settle()
                verdict(f"{call} of {2 * n} bytes", all(good), good)
                graph = common.capture(lambda: run(x), times=10)
                times = {call: common.replayed(graph) / 10}
                say(f"#   {call} {2 * n} bytes: {times[call]:.1f} us in graphs")

            attempt(call, check)
        del x, handle
    attempt("barrier", barriers)
    common.leave()


def barriers() -> None:
    """Write to peers between barriers, eager and captured."""
    x, handle = symmetric(4096)
    peer = handle.get_buffer((RANK + 1) % SIZE, (4096,), torch.bfloat16)

    def step() -> None:
        handle.barrier(channel=0)
        peer.fill_(RANK)
        handle.barrier(channel=1)

    step()
    good = bool((x == (RANK - 1) % SIZE).all())
    graph = common.capture(step)
    x.zero_()
    settle()
    graph.replay()
    torch.cuda.synchronize()
    verdict("barriers of a handle", good and bool((x == (RANK - 1) % SIZE).all()))
    handle.put_signal((RANK + 1) % SIZE, 2)
    handle.wait_signal((RANK - 1) % SIZE, 2)
    pad = handle.get_signal_pad(RANK, dtype=torch.int32)
    verdict("signals of a handle", not pad.any())


def inductor() -> None:
    """Compile an all-gather followed by a product, and check for PyTorch's fused operator."""
    begin()
    from torch._inductor import config
    from torch.distributed._functional_collectives import all_gather_tensor, reduce_scatter_tensor

    name = dist.group.WORLD.group_name
    symm_mem.enable_symm_mem_for_group(name)
    config._micro_pipeline_tp = True
    a = torch.randn(1024, 512, device=DEVICE, dtype=torch.bfloat16)
    b = torch.randn(512, 256, device=DEVICE, dtype=torch.bfloat16)

    def gathered(a: Tensor, b: Tensor) -> Tensor:
        return all_gather_tensor(a, 0, name) @ b

    def scattered(a: Tensor, b: Tensor) -> Tensor:
        return reduce_scatter_tensor(a @ b, "sum", 0, name)

    kinds = (gathered, "fused_all_gather_matmul"), (scattered, "fused_matmul_reduce_scatter")
    for run, fused in kinds:

        def check(run: Any = run, fused: str = fused) -> None:
            from torch._inductor.utils import run_and_get_code

            want = run(a, b)
            got, code = run_and_get_code(torch.compile(run), a, b)
            apart = (got.float() - want.float()).abs().max().item()
            verdict(f"Inductor takes {fused}", any(fused in text for text in code))
            good = apart <= 0.02 * want.abs().max().item()
            verdict(f"{fused} is right", good, f"{apart:.3f} apart")

        attempt(fused, check)
    common.leave()


@triton.jit
def sync_blocks(pads, rank: tl.constexpr, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """Waits for the same block of all ranks, by the 0/1 protocol of PyTorch's signal pads."""
    block = tl.program_id(0)
    for peer in tl.static_range(size):
        to = tl.load(pads + peer).to(tl.pointer_type(tl.int32)) + block * size + rank
        while tl.atomic_cas(to, 0, 1, sem="release", scope="sys") != 0:
            pass
    for peer in tl.static_range(size):
        at = tl.load(pads + rank).to(tl.pointer_type(tl.int32)) + block * size + peer
        while tl.atomic_cas(at, 1, 0, sem="acquire", scope="sys") != 1:
            pass


@triton.jit
def one_shot(  # type: ignore[no-untyped-def]
    buffer_ptrs, pad_ptrs, output, n, rank: tl.constexpr, size: tl.constexpr, width: tl.constexpr
):
    """Adds the buffers of all ranks, as kernels of programs do with PyTorch's handles."""
    buffers = buffer_ptrs.to(tl.pointer_type(tl.uint64))
    pads = pad_ptrs.to(tl.pointer_type(tl.uint64))
    sync_blocks(pads, rank, size)
    tl.debug_barrier()
    at = tl.program_id(0) * width + tl.arange(0, width)
    total = tl.zeros((width,), tl.float32)
    for peer in tl.static_range(size):
        data = tl.load(buffers + peer).to(tl.pointer_type(tl.bfloat16))
        total += tl.load(data + at, mask=at < n).to(tl.float32)
    tl.store(output + at, total.to(tl.bfloat16), mask=at < n)
    tl.debug_barrier()
    sync_blocks(pads, rank, size)


def handles() -> None:
    """Run an unchanged kernel with symmem's handle of a symmem tensor."""
    common.distributed()
    group = symmem.init(backend="nccl", timeout=15)
    n, width = 100_000, 1024
    with symmem.use(group):
        x = torch.empty(n, device=DEVICE, dtype=torch.bfloat16)
    output = torch.empty_like(x)

    def check() -> None:
        made = symmem.handle(x, group)
        verdict("a handle has no multicast", made.multicast_ptr == 0)

        def run() -> None:
            one_shot[(triton.cdiv(n, width),)](
                *(made.buffer_ptrs_dev, made.signal_pad_ptrs_dev, output, n, RANK, SIZE, width)
            )

        good = []
        for _ in range(3):
            x.copy_(numbers(n))
            run()
            settle()
            good.append(torch.equal(output, total(n)))
        verdict("an unchanged kernel", all(good), good)
        graph = common.capture(run, times=10)
        say(f"#   {2 * n} bytes: {common.replayed(graph) / 10:.1f} us in graphs")
        verdict("pads are zero again", not made.get_signal_pad(RANK, dtype=torch.int32).any())

    attempt("handles", check)
    common.leave()


def faults() -> None:
    """Make a rank miss a handle's barrier. The others must get an error that names it."""
    common.distributed()
    symmem.init(backend="nccl", timeout=3)
    symmem.use_symm_mem()
    _, handle = symmetric(1024)
    settle()
    began = time.monotonic()
    text = ""
    if RANK == SIZE - 1:
        time.sleep(5)
    try:
        for _ in range(3):
            handle.barrier()
            torch.cuda.synchronize()
    except Exception as e:
        text = f"{type(e).__name__}: {e}"
    waited = time.monotonic() - began
    named = f"rank {SIZE - 1}" in text and waited < 9
    verdict("a missing rank is named", named, f"{waited:.1f} s: {text[:250]!r}")
    usable = torch.ones(100, device=DEVICE).sum().item() == 100
    verdict("the GPU is usable", usable)
    common.leave()


PARTS = {f.__name__: f for f in (operators, inductor, handles, faults)}

if __name__ == "__main__":
    PARTS[sys.argv[1]]()
