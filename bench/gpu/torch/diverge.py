"""The last rank makes a tensor more than the others: an error on all ranks, before a wrong sum.

diverge.py segment   a tensor that needs new memory, found when it is to be registered
diverge.py tensor    a tensor from memory that PyTorch has cached, found by the next all-reduce
diverge.py check     the same at level "registration", found by symmem.check
"""

from __future__ import annotations

import sys

import common
import torch
from common import DEVICE, MIB, RANK, SIZE, SUM, attempt, gather, say, verdict

import symmem


def run(way: str) -> None:
    """Make tensors until the ranks differ."""
    level = "registration" if way == "check" else "every"
    world = common.start(path="window", check=level, callsites=True)
    wrong = 0
    with symmem.use(world):
        before = torch.empty(MIB, device=DEVICE)
    before.fill_(RANK + 1)
    symmem.all_reduce(before)
    error = None
    try:
        with symmem.use(world):
            if RANK == SIZE - 1:
                extra = torch.empty((24 if way == "segment" else 1) * MIB // 4, device=DEVICE)
                say(extra.numel())
        for _ in range(3):
            with symmem.use(world):
                tensor = torch.empty(2 * MIB, device=DEVICE)
            tensor.fill_(RANK + 1)
            if way == "check":
                symmem.check(world)
            symmem.all_reduce(tensor)
            torch.cuda.synchronize()
            wrong += int(not bool((tensor == SUM).all()))
    except symmem.DivergenceError as e:
        error = e
    text = str(error)
    ok = error is not None and "diverge.py" in text and wrong == 0
    kinds = {type(error).__name__, *gather(type(error).__name__)}
    verdict(f"divergence, {way}", ok and len(kinds) == 1, f"{wrong} wrong sums\n  {text}")


if __name__ == "__main__":
    attempt("divergence", lambda: run(sys.argv[1]))
    common.leave()
