"""The fused norm on GPUs, against what PyTorch computes."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from harness import RANK, SIZE, check, main, raises

import symmem

EPS = 1e-5
DEVICE = f"cuda:{RANK}"


def reference(
    tensor: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do the three steps, with symmem's own all-reduce."""
    y = tensor.clone()
    symmem.all_reduce(y)
    total = residual + y
    wide = total.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS) * weight.float()
    return total, scaled.bfloat16()


def draw(*shape: int, own: bool) -> torch.Tensor:
    """Draw a tensor, of each rank's own or alike on all."""
    generator = torch.Generator(DEVICE).manual_seed(sum(shape) + (RANK if own else 1000))
    return torch.randn(*shape, generator=generator, device=DEVICE).bfloat16()


def alike(got: torch.Tensor, want: torch.Tensor) -> None:
    """Compare outputs: a bit of bfloat16 is one unit in the last place."""
    apart = (got.view(torch.int16).int() - want.view(torch.int16).int()).abs()
    assert int(apart.max()) <= 1
    assert float((apart > 0).float().mean()) < 0.01
    every = [torch.empty_like(got) for _ in range(SIZE)]
    dist.all_gather(every, got)
    assert all(torch.equal(one, got) for one in every), "ranks have other bits"


@check
def symmem_opens() -> None:
    torch.cuda.set_device(RANK)
    dist.init_process_group("nccl")
    symmem.init(backend="nccl", timeout=30, path=os.environ.get("SYMMEM_PATH", "direct"))


@check
def norms_are_what_three_steps_are() -> None:
    for shape in ((1, 4096), (7, 8192), (2, 3, 1024), (100, 2048), (1, 16384), (5, 8)):
        tensor, residual = draw(*shape, own=True), draw(*shape, own=False)
        weight = draw(shape[-1], own=False)
        total, want = reference(tensor, residual, weight)
        kept = tensor.clone()
        got = symmem.all_reduce_rms_norm(tensor, residual, weight, EPS)
        assert torch.equal(residual, total), shape
        assert torch.equal(tensor, kept), shape
        alike(got, want)


@check
def graphs_hold_norms() -> None:
    tensor, weight = draw(4, 4096, own=True), draw(4096, own=False)
    start, residual = draw(4, 4096, own=False), torch.empty(4, 4096).bfloat16().to(DEVICE)
    total, want = reference(tensor, start, weight)
    out = torch.empty_like(tensor)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        residual.copy_(start)
        symmem.all_reduce_rms_norm(tensor, residual, weight, EPS, out=out)
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(residual, total)
    alike(out, want)


@check
def tensors_that_do_not_fit_are_refused() -> None:
    good, weight = draw(2, 64, own=False), draw(64, own=False)
    norm = symmem.all_reduce_rms_norm
    for tensor, residual, scale in (
        (good.float(), good.clone(), weight),
        (good, good[:1].clone(), weight),
        (good, good.clone(), weight[:32]),
        (good.t(), good.t(), weight[:2]),
        (good, good, weight),
    ):
        raises(symmem.InvalidError, lambda t=tensor, r=residual, s=scale: norm(t, r, s, EPS))
    large = draw(5000, 4096, own=False)
    raises(symmem.UnsupportedError, lambda: norm(large, large.clone(), draw(4096, own=False), EPS))


@check
def symmem_ends() -> None:
    symmem.finalize()
    dist.destroy_process_group()


main()
