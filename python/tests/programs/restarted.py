"""Training that torchrun restarts after a rank was killed in a step."""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import symmem  # noqa: F401 - PyTorch 2.11 needs this to find the backend.

STEPS = 20
FOLDER = Path(sys.argv[1])
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

dist.init_process_group("symmem", timeout=timedelta(seconds=60))
rank = dist.get_rank()
saved = FOLDER / "step"
first = int(saved.read_text()) if saved.exists() else 0
weight = torch.full((1000,), float(first * dist.get_world_size()))
for step in range(first, STEPS):
    gradient = torch.ones(1000)
    dist.all_reduce(gradient, async_op=True).wait()
    weight += gradient
    if rank == 0:
        saved.write_text(str(step + 1))
    if (ATTEMPT, rank, step) == (0, 1, STEPS // 2):
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
(FOLDER / f"rank {rank}").write_text(f"attempt {ATTEMPT}: {weight.mean().item():g}")
dist.destroy_process_group()
