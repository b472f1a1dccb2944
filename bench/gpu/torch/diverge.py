"""Tests that a different tensor on the last rank is an error on all ranks before a wrong sum.

diverge.py segment   an extra tensor that needs new memory, detected before its registration
diverge.py tensor    an extra tensor from PyTorch's cache, detected by the next all-reduce
diverge.py check     the same at level "registration", detected by symmem.check
diverge.py size      a tensor of a different size, which needs new memory on all ranks
"""

from __future__ import annotations

import sys

import common
import torch
from common import DEVICE, MIB, RANK, SIZE, SUM, attempt, gather, verdict

import symmem


def odd(way: str) -> int:
    """Return the size in bytes of the last rank's extra tensor, or 0 for none."""
    last = RANK == SIZE - 1
    if way == "size":
        return (384 if last else 256) * MIB
    # PyTorch places tensors of up to 1 MiB in other segments than the reduced ones.
    return (256 if way == "segment" else 3) * MIB if last else 0


def run(way: str) -> None:
    """Allocate tensors until the ranks detect the difference."""
    level = "registration" if way == "check" else "every"
    world = common.start(path="window", check=level, callsites=True)
    wrong = 0
    with symmem.use(world):
        kept = [torch.empty(MIB, device=DEVICE)]
    kept[0].fill_(RANK + 1)
    symmem.all_reduce(kept[0])
    error, place = None, "diverge.py"
    try:
        if way == "size":
            # The allocation is an event, so the line is that of the surrounding scope.
            place += f":{sys._getframe().f_lineno + 1}"
        with symmem.use(world):
            if size := odd(way):
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
    ok = error is not None and place in text and wrong == 0
    kinds = {type(error).__name__, *gather(type(error).__name__)}
    verdict(f"divergence, {way}", ok and len(kinds) == 1, f"{wrong} wrong sums\n  {text}")


if __name__ == "__main__":
    attempt("divergence", lambda: run(sys.argv[1]))
    common.leave()
