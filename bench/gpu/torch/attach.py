"""Unchanged calls of torch.distributed run symmetric kernels of NCCL, after attach."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

LOG = Path(tempfile.gettempdir()) / f"symmem-attach-{os.getpid()}.log"
# NCCL says which kernels it takes, on rank 0 of a communicator. It reads this once.
os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="TUNING", NCCL_DEBUG_FILE=str(LOG))

import common  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from common import DEVICE, MIB, RANK, SIZE, SUM, attempt, gather, verdict  # noqa: E402

import symmem  # noqa: E402


def kernels(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> list[str]:
    """Name what an all-reduce runs on: kernels by the profiler, and the lines of NCCL's log."""
    torch.cuda.synchronize()
    before = len(logged())
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        dist.all_reduce(tensor, group=group)
        torch.cuda.synchronize()
    names = {event.key.split("(")[0] for event in profile.key_averages()}
    seen = sorted(n for n in names if "nccl" in n.lower() and "Kernel" in n)
    return sorted({name for rank in gather(seen + logged()[before:]) for name in rank})


def logged() -> list[str]:
    """Read the all-reduces in NCCL's log."""
    if not LOG.exists():
        return []
    lines = (line.partition("NCCL INFO ")[2] for line in LOG.read_text().splitlines())
    return [line for line in lines if line.startswith("AllReduce") and "Bytes ->" in line]


def is_symmetric_kernel(names: list[str]) -> bool:
    """Tell whether NCCL's kernels for symmetric memory are among them."""
    return any("ncclSymk" in n or "[Symmetric]" in n for n in names)


def world() -> None:
    """Attach the default process group."""
    group = symmem.attach()
    with symmem.use(group):
        x = torch.empty(4 * MIB, device=DEVICE, dtype=torch.bfloat16)
    plain = torch.ones(4 * MIB, device=DEVICE, dtype=torch.bfloat16)
    x.fill_(RANK + 1)
    dist.all_reduce(x)
    right = bool((x == SUM).all())
    ours, theirs = kernels(x), kernels(plain)
    verdict("dist.all_reduce after attach is right", right)
    verdict("it runs a symmetric kernel", is_symmetric_kernel(ours), ours)
    verdict("ordinary tensors do not", not is_symmetric_kernel(theirs), theirs)


def later() -> None:
    """Memory that comes later is registered at the end of its scope."""
    group = symmem.attach()
    with symmem.use(group):
        x = torch.full((128 * MIB,), RANK + 1.0, device=DEVICE)
    names = kernels(x)
    verdict("memory made after attach", is_symmetric_kernel(names), names)


def several() -> None:
    """Attach a second process group over the same memory."""
    ranks = list(range(SIZE))
    second = dist.new_group(ranks, backend="nccl")
    group = symmem.attach(second)
    with symmem.use(group):
        x = torch.full((4 * MIB,), RANK + 1.0, device=DEVICE)
    names = kernels(x, second)
    right = bool((x == SUM).all())
    verdict("two communicators over one memory", right and is_symmetric_kernel(names), names)
    verdict("detach", symmem.detach(second) and not symmem.detach(second))
    dist.destroy_process_group(second)


def destroyed() -> None:
    """A process group is destroyed without detach: later scopes go on."""
    third = dist.new_group(list(range(SIZE)), backend="nccl")
    group = symmem.attach(third)
    dist.destroy_process_group(third)
    with symmem.use(group):
        x = torch.full((256 * MIB,), RANK + 1.0, device=DEVICE)
    symmem.all_reduce(x)
    verdict("a process group that is gone", bool((x == SUM).all()))


if __name__ == "__main__":
    common.start()
    for part in (world, later, several, destroyed):
        attempt(part.__name__, part)
    LOG.unlink(missing_ok=True)
    common.leave()
