"""A program for mypy, with a `type: ignore` wherever mypy must report an error."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import symmem


def calls(x: torch.Tensor, out: torch.Tensor, mesh: DeviceMesh, wanted: bool) -> None:
    work: symmem.Work = symmem.all_reduce(x, async_op=True)
    work.wait()
    work = symmem.all_reduce(x, "max", None, True)
    work = symmem.broadcast(x, 0, async_op=True)
    work = symmem.all_gather_into_tensor(out, x, async_op=True)
    work = symmem.reduce_scatter_tensor(x, out, dist.ReduceOp.SUM, async_op=True)
    work = symmem.all_to_all_single(out, x, [1, 2], [2, 1], async_op=True)
    work = symmem.barrier(async_op=True)
    symmem.all_reduce(x, async_op=False)
    perhaps: symmem.Work | None = symmem.all_reduce(x, async_op=wanted)
    if perhaps is not None:
        perhaps.wait()
    for group in (mesh, (mesh, 0), [0, 1], "world", None, symmem.world(), dist.group.WORLD):
        symmem.all_reduce(x, group=group)
    symmem.all_reduce(x).wait()  # type: ignore[attr-defined]
    symmem.all_reduce(x, async_op=wanted).wait()  # type: ignore[union-attr]


def values(x: torch.Tensor) -> tuple[bool, int]:
    symmem.combine(0.5, "rate", "sum")  # type: ignore[call-overload]
    symmem.combine(1, "rate", "mean")  # type: ignore[call-overload]
    return symmem.combine([x], "tensors", "all"), symmem.combine(3, "batch size", op="max")


def mistakes(x: torch.Tensor) -> None:
    symmem.all_reduce(x, op=3)  # type: ignore[call-overload]
    symmem.all_reduce(x, op="sums")  # type: ignore[call-overload]
    symmem.all_reduce(x, group=7)  # type: ignore[call-overload]
    symmem.all_reduce([x])  # type: ignore[call-overload]
    symmem.init(check="evry")  # type: ignore[arg-type]
    symmem.init(backend="mpi")  # type: ignore[arg-type]
    symmem.set_path("windw")  # type: ignore[arg-type]
    symmem.set_check("all")  # type: ignore[arg-type]
