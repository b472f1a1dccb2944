"""Compares collectives on GPUs with those of torch.distributed.

The first three check what vLLM's tests of its symmetric operators check: 4 Mi elements of bfloat16
in symmetric buffers, and results equal to those of torch.distributed.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path

import common
import torch
import torch.distributed as dist
from common import DEVICE, RANK, SIZE, attempt, verdict

import symmem

COUNT = 4 << 20


def random(seed: int, count: int) -> torch.Tensor:
    """Draw elements that differ between ranks."""
    generator = torch.Generator(device=DEVICE).manual_seed(1000 * seed + RANK)
    return torch.randn(count, device=DEVICE, dtype=torch.float32, generator=generator).bfloat16()


def symmetric(like: torch.Tensor) -> torch.Tensor:
    """Copy a tensor into symmetric memory."""
    with symmem.use():
        made = torch.empty_like(like)
    return made.copy_(like)


def all_reduce() -> None:
    """Compare all-reduces."""
    source = random(1, COUNT)
    mine, theirs = symmetric(source), source.clone()
    symmem.all_reduce(mine)
    dist.all_reduce(theirs)
    close = torch.allclose(mine.float(), theirs.float(), atol=2.5, rtol=0.1)
    worst = (mine.float() - theirs.float()).abs().max().item()
    path = symmem.explain("all_reduce", mine).path
    verdict("all_reduce", close and symmem.is_symmetric(mine), f"differs by {worst}, path {path}")


def ordinary() -> None:
    """Sum an ordinary tensor, made outside every scope, with symmem's kernels."""
    tensor = torch.ones(1024, device=DEVICE)
    found = symmem.explain("all_reduce", tensor)
    symmem.all_reduce(tensor)
    right = bool((tensor == SIZE).all())
    ok = found.path == "direct" and right and not symmem.is_symmetric(tensor)
    verdict("an ordinary small tensor goes direct", ok, f"{found}; the sum is right: {right}")


def all_gather() -> None:
    """Compare all-gathers, which must be equal."""
    source = symmetric(random(2, COUNT // SIZE))
    with symmem.use():
        mine = torch.empty(COUNT, device=DEVICE, dtype=torch.bfloat16)
    theirs = torch.empty_like(mine)
    symmem.all_gather_into_tensor(mine, source)
    dist.all_gather_into_tensor(theirs, source.clone())
    verdict("all_gather_into_tensor", torch.equal(mine, theirs))


def reduce_scatter() -> None:
    """Compare reduce-scatters."""
    source = symmetric(random(3, COUNT))
    with symmem.use():
        mine = torch.empty(COUNT // SIZE, device=DEVICE, dtype=torch.bfloat16)
    theirs = torch.empty(COUNT // SIZE, device=DEVICE, dtype=torch.bfloat16)
    symmem.reduce_scatter_tensor(mine, source)
    dist.reduce_scatter_tensor(theirs, source.clone())
    verdict("reduce_scatter_tensor", torch.allclose(mine.float(), theirs.float(), 0.1, 2.5))


def others() -> None:
    """Compare broadcast and all-to-all."""
    tensor = symmetric(random(4, COUNT))
    symmem.broadcast(tensor, src=SIZE - 1)
    theirs = random(4, COUNT)
    dist.broadcast(theirs, src=SIZE - 1)
    verdict("broadcast", torch.equal(tensor, theirs))
    source = symmetric(random(5, COUNT))
    mine, out = symmetric(source), torch.empty_like(source)
    symmem.all_to_all_single(mine, source)
    dist.all_to_all_single(out, source.clone())
    verdict("all_to_all_single", torch.equal(mine, out))
    symmem.all_to_all_single(mine.zero_(), source, equal_splits=True)
    verdict("all_to_all_single of equal splits", torch.equal(mine, out))
    # The splits of rank 0 happen to be equal, so it passes none.
    part = COUNT // SIZE
    sizes = [part] * SIZE
    if RANK > 0:
        sizes[RANK] = part // 2
    splits = (None, None) if RANK == 0 else (sizes, sizes)
    source = random(6, sum(sizes))
    mine, out = torch.empty_like(source), torch.empty_like(source)
    symmem.all_to_all_single(mine, source, *splits)
    dist.all_to_all_single(out, source.clone(), sizes, sizes)
    verdict("all_to_all_single with splits on some ranks", torch.equal(mine, out))


def asynchronous() -> None:
    """Overlap collectives with work on the current stream."""
    tensors = [symmetric(random(6 + i, COUNT)) for i in range(4)]
    sums = [t.clone() for t in tensors]
    works = [symmem.all_reduce(t, async_op=True) for t in tensors]
    busy = torch.randn(2048, 2048, device=DEVICE)
    for _ in range(20):
        busy = busy @ busy / 2048
    ok = True
    for tensor, want, work in zip(tensors, sums, works, strict=True):
        assert work is not None
        work.wait()
        dist.all_reduce(want)
        ok = ok and torch.allclose(tensor.float(), want.float(), 0.1, 2.5)
    verdict("async_op", ok)


def backward() -> None:
    """Allocate symmetric tensors on autograd's threads, in a scope around backward."""
    seen = []

    class Reduced(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            with symmem.use() as world:
                out = grad * 2
            seen.append(symmem.is_symmetric(out, world))
            symmem.all_reduce(out)
            return out

    x = torch.ones(1 << 20, device=DEVICE, requires_grad=True)
    with symmem.use():
        Reduced.apply(x).sum().backward()
    assert x.grad is not None
    verdict("backward", seen == [True] and bool((x.grad == 2 * SIZE).all()), f"symmetric: {seen}")
    made = []
    x.register_hook(lambda g: made.append(symmem.is_symmetric(g)))
    with symmem.use(all_threads=True):
        (x * 3).sum().backward()
    verdict("backward with all_threads", made == [True], f"symmetric: {made}")


def compiled() -> None:
    """Compile a function with collectives inside."""

    def layer(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        symmem.all_reduce(y)
        return torch.ops.symmem.all_reduce(y + 1, "sum", "world")

    x = torch.ones(4096, device=DEVICE)
    want = SIZE * (2 * SIZE + 1)
    found = torch.compile(layer, backend="aot_eager", fullgraph=True)(x)
    verdict("torch.compile, aot_eager", bool((found == want).all()))
    if lacking := compiler_lacks():
        common.say(f"SKIP torch.compile, inductor: this machine has no {lacking}")
        return
    found = torch.compile(layer, fullgraph=True)(x)
    verdict("torch.compile, inductor", bool((found == want).all()))


def compiler_lacks() -> str:
    """Return what this machine lacks to compile with inductor, or nothing."""
    if importlib.util.find_spec("triton") is None:
        return "Triton"
    # Triton uses these to compile the code that launches its kernels.
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "C compiler"
    if not Path(sysconfig.get_config_var("INCLUDEPY"), "Python.h").exists():
        return "Python.h"
    return ""


if __name__ == "__main__":
    common.start()
    sums = (all_reduce, ordinary, all_gather, reduce_scatter, others)
    for part in (*sums, asynchronous, backward, compiled):
        attempt(part.__name__, part)
    common.leave()
