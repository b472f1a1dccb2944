"""Compares DDP with the communication hook of docs/training.md to DDP without a hook."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from harness import RANK, check, main

import symmem

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "training.md"


def hook_of_the_guide() -> Any:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)
    names: dict[str, Any] = {}
    exec(next(b for b in blocks if "def average" in b), names)
    return names["average"]


def train(hook: Any, state: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)]
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*layers), bucket_cap_mb=0.02
    )
    if hook is not None:
        model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(10):
        torch.manual_seed(step + 10 * RANK)
        optimizer.zero_grad()
        model(torch.randn(16, 64)).pow(2).mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


@check
def the_hook_does_not_change_training() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    symmem.init(backend="host", timeout=30)
    want = train(None, None)
    for state in (None, dist.group.WORLD):
        before = symmem.stats()["groups"]["world"]["paths"]
        got = train(hook_of_the_guide(), state)
        assert symmem.stats()["groups"]["world"]["paths"] != before, "the hook was not called"
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    main()
