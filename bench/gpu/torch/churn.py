"""All-reduces symmetric tensors while each rank also allocates other tensors.

churn.py stock    PyTorch's own symmetric pool: wrong sums, and no error
churn.py symmem   the same histories, then 20 longer ones, with symmem: no sum may be wrong
churn.py diverge  a history in which the last rank allocates an extra tensor: an error on all ranks
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import common
import torch
import torch.distributed as dist
from common import DEVICE, MIB, RANK, SIZE, SUM, Noise, attempt, gather, history, say, verdict

import symmem


def churn(
    seed: int, steps: int, scope: Callable[[], Any], reduce: Callable[[Any], Any]
) -> list[int]:
    """Run a history, and return the number of sums and of wrong sums."""
    noise, live, made, wrong = Noise(seed), [], 0, 0
    for drop, size in history(seed, steps):
        noise.step()
        if drop is not None:
            live.pop(drop)
        with scope():
            tensor = torch.empty(size // 4, device=DEVICE)
        live.append(tensor)
        tensor.fill_(RANK + 1)
        reduce(tensor)
        torch.cuda.synchronize()
        made += 1
        wrong += int(not bool((tensor == SUM).all()))
    return [made, wrong]


def total(found: list[list[int]]) -> tuple[int, int]:
    """Add the results of several histories. A sum is wrong if it is wrong on any rank."""
    made = sum(f[0] for f in found)
    return made, max(gather(sum(f[1] for f in found)))


def stock() -> None:
    """Run four histories of 100 on PyTorch's own pool, each with a new process group."""
    found = []
    for seed in range(4):
        group = dist.new_group(backend="nccl")
        backend = group._get_backend(DEVICE)
        dist.all_reduce(torch.ones(1, device=DEVICE), group=group)
        pool = torch.cuda.MemPool(backend.mem_allocator)
        backend.register_mem_pool(pool, symm=True)
        scope = lambda p=pool: torch.cuda.use_mem_pool(p)  # noqa: E731
        found.append(churn(seed, 100, scope, lambda t, g=group: dist.all_reduce(t, group=g)))
    made, wrong = total(found)
    # No wrong sum only means that the machine was lucky, so this is not a verdict.
    say(f"INFO stock churn: {wrong} wrong of {made}")


def ours() -> None:
    """Run the same histories on symmem, over windows where possible."""
    world = common.start(path="window")
    scope = lambda: symmem.use(world)  # noqa: E731
    found = [churn(seed, 100, scope, symmem.all_reduce) for seed in range(4)]
    made, wrong = total(found)
    verdict("churn, the four histories of stock", wrong == 0, f"{wrong} wrong of {made}")
    begin = time.monotonic()
    found = [churn(seed, 200, scope, symmem.all_reduce) for seed in range(10, 30)]
    made, wrong = total(found)
    took = time.monotonic() - begin
    verdict("churn, 20 longer histories", wrong == 0, f"{wrong} wrong of {made} in {took:.0f} s")
    paths = symmem.stats()["groups"]["world"]["paths"]
    verdict("churn ran over windows", paths.get("window", 0) > 0, paths)
    attempt("churn with unchanged calls", unchanged)


def unchanged() -> None:
    """Run the histories with torch.distributed's own calls after attach."""
    if not common.attachable():
        say("SKIP, not supported here: attach needs NCCL 2.30.7 or newer")
        return
    group = symmem.attach()
    found = [churn(seed, 100, lambda: symmem.use(group), dist.all_reduce) for seed in range(4)]
    made, wrong = total(found)
    verdict("churn, dist.all_reduce after attach", wrong == 0, f"{wrong} wrong of {made}")
    symmem.check()
    verdict("all ranks agree where every tensor was", True)
    with contextlib.suppress(symmem.SymmemError):
        symmem.detach()


def diverge(after: int = 40) -> None:
    """Run a history in which the last rank allocates an extra tensor after some steps."""
    world = common.start(path="window", check="every", callsites=True)
    made, wrong = 0, 0
    extra: list[torch.Tensor] = []

    @contextlib.contextmanager
    def scope() -> Iterator[None]:
        nonlocal made
        made += 1
        with symmem.use(world):
            if made == after and RANK == SIZE - 1:
                extra.append(torch.empty(3 * MIB // 4, device=DEVICE))
            yield

    def reduce(tensor: torch.Tensor) -> None:
        nonlocal wrong
        symmem.all_reduce(tensor)
        torch.cuda.synchronize()
        wrong += int(not bool((tensor == SUM).all()))

    error = None
    try:
        churn(0, 100, scope, reduce)
        symmem.check(world)
    except symmem.DivergenceError as e:
        error = e
    text = str(error)
    ok = error is not None and "churn.py:" in text and wrong == 0
    kinds = {type(error).__name__, *gather(type(error).__name__)}
    figures = f"{wrong} wrong sums up to scope {made}, the tensor is of {after}\n  {text}"
    verdict("churn with a rank that diverges", ok and len(kinds) == 1, figures)


if __name__ == "__main__":
    if sys.argv[1] == "stock":
        common.distributed()
        attempt("stock churn", stock)
    elif sys.argv[1] == "diverge":
        attempt("churn with a rank that diverges", diverge)
    else:
        attempt("churn", ours)
    common.leave()
