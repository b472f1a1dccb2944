"""Waits in a collective that rank 1 does not call, until Ctrl-C: ctrl_c.py FOLDER."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import symmem  # noqa: F401 - PyTorch 2.11 needs this to find the backend.

FOLDER = Path(sys.argv[1])

dist.init_process_group("symmem", timeout=timedelta(seconds=60))
rank = dist.get_rank()
dist.barrier()
try:
    (FOLDER / f"ready {rank}").touch()
    if rank == 0:
        dist.all_reduce(torch.ones(3))
    else:
        time.sleep(60)
finally:
    (FOLDER / f"ended {rank}").write_text(str(time.time()))
