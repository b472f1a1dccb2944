"""The last rank makes a tensor more than the others: an error on all ranks, before a wrong sum.

diverge.py segment   a tensor that needs new memory, found when it is to be registered
diverge.py tensor    a tensor from memory that PyTorch has cached, found by the next all-reduce
diverge.py check     the same at level "registration", found by symmem.check
"""

from __future__ import annotations

import sys

import common
import torch
from common import DEVICE, MIB, RANK, SIZE, SUM, attempt, gather, verdict

import symmem


def run(way: str) -> None:
    """Make tensors until the ranks differ."""
    level = "registration" if way == "check" else "every"
    world = common.start(path="window", check=level, callsites=True)
    wrong = 0
    with symmem.use(world):
        kept = [torch.empty(MIB, device=DEVICE)]
    kept[0].fill_(RANK + 1)
    symmem.all_reduce(kept[0])
    error = None
    try:
        with symmem.use(world):
            if RANK == SIZE - 1:
                # PyTorch keeps tensors of 1 MiB and less apart from those that are reduced.
                size = (256 if way == "segment" else 3) * MIB
                kept.append(torch.empty(size // 4, device=DEVICE))
        for _ in range(3):
            with symmem.use(world):
                tensor = torch.empty(2 * MIB, device=DEVICE)
            tensor.fill_(RANK + 1)
            if way == "check":
                symmem.check(world)
            symmem.all_reduce(tensor)
            torch.cuda.synchronize()
            wrong += int(not bool((tensor == SUM).all()))
        symmem.check(world)
    except symmem.DivergenceError as e:
        error = e
    text = str(error)
    ok = error is not None and "diverge.py" in text and wrong == 0
    kinds = {type(error).__name__, *gather(type(error).__name__)}
    verdict(f"divergence, {way}", ok and len(kinds) == 1, f"{wrong} wrong sums\n  {text}")


if __name__ == "__main__":
    attempt("divergence", lambda: run(sys.argv[1]))
    common.leave()
