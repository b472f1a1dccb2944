"""Verifies all-reduces of symmetric tensors from PyTorch's allocator.

    symmem launch -n 2 -- python -m symmem.verify
    torchrun --nproc-per-node 4 -m symmem.verify --rounds 10

The ranks allocate and free the same tensors in scopes, allocate and free other tensors that differ
between ranks, and sum live tensors over overlapping groups. The command `symmem verify` performs
more checks of a machine, without PyTorch.

Exit codes: 0: all sums were correct; 1: a sum was wrong or the ranks diverged; 2: the program could
not complete.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import symmem

if TYPE_CHECKING:
    import torch

STEPS = 200
"""The number of tensors that a round allocates or frees."""

SUM_EVERY = 4
"""The number of these steps between two sums."""

LIVE = 16
SIZES = (64 << 10, 128 << 10, 256 << 10)
"""The maximum number of live tensors, and their possible lengths."""

OWN_LIVE, OWN_BYTES = 16, 3 << 20
"""The maximum number of ordinary tensors on a rank, and the maximum size of each."""

LARGEST_VALUE = 997
"""The maximum element on rank 0. It is so small that sums over hundreds of ranks are exact."""


def parser() -> argparse.ArgumentParser:
    """Return a parser for the flags."""
    p = argparse.ArgumentParser(
        prog="python -m symmem.verify",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--backend", default="auto", choices=["auto", "nccl", "host"])
    p.add_argument("--check", choices=["off", "registration", "every"], help="check level")
    p.add_argument("--path", help="path of collectives (default: $SYMMEM_PATH or window)")
    p.add_argument("--rounds", type=int, default=2, help="number of rounds (default: 2)")
    p.add_argument("--seed", type=int, default=1, help="seed of the random numbers (default: 1)")
    p.add_argument(
        "--timeout", type=float, default=30.0, help="longest wait for a rank, in seconds"
    )
    p.add_argument("--callsites", action="store_true", help="record the lines that create tensors")
    return p


class Rank:
    """One rank, with its groups, its tensors and its results.

    Attributes:
        sums: the number of sums that this rank has checked.
        wrong: descriptions of the wrong sums.
        paths: the paths of the sums.
    """

    def __init__(self, world: symmem.Group, seed: int):
        import torch

        self.torch: Any = torch
        self.world = world
        self.groups = overlapping(world)
        self.common = random.Random(f"all {seed}")
        self.own = random.Random(f"rank {world.rank} {seed}")
        self.live: list[torch.Tensor] = []
        self.noise: list[torch.Tensor] = []
        self.drawn = 0
        self.sums = 0
        self.wrong: list[str] = []
        self.paths: set[str] = set()

    def round(self) -> None:
        """Allocate and free tensors, sum some of them, and free the rest."""
        for step in range(STEPS):
            self._make_noise()
            if not self.live or (len(self.live) < LIVE and self.common.random() < 0.6):
                with symmem.use(self.world):
                    made = symmem.empty(self.common.choice(SIZES), dtype=self.torch.float32)
                self.live.append(made)
            else:
                self.live.pop(self.common.randrange(len(self.live)))
            if step % SUM_EVERY == 0 and self.live:
                self._sum(self.common.choice(self.live))
        self.live.clear()

    def _make_noise(self) -> None:
        """Allocate or free an ordinary tensor, at random and independently of other ranks."""
        if len(self.noise) < OWN_LIVE and self.own.random() < 0.5:
            size = 1 + self.own.randrange(OWN_BYTES)
            device = "cpu" if self.world.runtime.device is None else "cuda"
            self.noise.append(self.torch.empty(size, dtype=self.torch.uint8, device=device))
        elif self.noise:
            self.noise.pop(self.own.randrange(len(self.noise)))

    def _sum(self, tensor: torch.Tensor) -> None:
        """Sum a tensor over the next group in turn, and check every element."""
        self.drawn += 1
        group = self.groups[self.drawn % len(self.groups)]
        if group is None:
            return
        value = 1 + self.drawn % LARGEST_VALUE
        tensor.fill_(value * (group.rank + 1))
        symmem.all_reduce(tensor, group=group)
        self.paths.add(symmem.explain("all_reduce", tensor, group=group).path)
        want = value * group.size * (group.size + 1) // 2
        self.sums += 1
        if wrong := int(tensor.ne(want).sum()):
            got = tensor[tensor.ne(want)][0].item()
            self.wrong.append(
                f"sum {self.drawn}, {group.name}: {wrong} of {tensor.numel()} elements are wrong, "
                f"the first is {got}, want {want}"
            )


def overlapping(world: symmem.Group) -> list[symmem.Group | None]:
    """Return the world and two groups of more than half the ranks, which share its memory.

    A group that does not contain this rank is None.
    """
    groups: list[symmem.Group | None] = [world]
    many = world.size // 2 + 1
    for name, ranks in (("first", world.ranks[:many]), ("last", world.ranks[-many:])):
        inside = world.rank in ranks
        made = symmem.group(ranks, domain=world, name=f"verify {name}") if inside else None
        groups.append(made)
    return groups


def run(flags: argparse.Namespace) -> int:
    """Run one rank and return the exit code, which is the same on all ranks."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    path: Any = flags.path or os.environ.get("SYMMEM_PATH") or "window"
    world = symmem.init(
        backend=flags.backend,
        check=flags.check,
        path=path,
        timeout=flags.timeout,
        callsites=flags.callsites or None,
    )
    rank = Rank(world, flags.seed)
    for _ in range(flags.rounds):
        rank.round()
    symmem.check()
    for line in rank.wrong:
        print(f"[rank {world.rank}] {line}", file=sys.stderr)
    wrong = symmem.combine(len(rank.wrong), "wrong sums", "sum")
    if world.rank == 0:
        print(
            f"{world.size} ranks on the {world.runtime.backend} backend, "
            f"path {', '.join(sorted(rank.paths))}: {rank.sums} sums on rank 0, "
            f"{wrong} wrong on all ranks",
            flush=True,
        )
    symmem.finalize(force=True)
    dist.destroy_process_group()
    return 1 if wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    flags = parser().parse_args(arguments)
    if "RANK" not in os.environ:
        print(
            "symmem.verify: RANK is not set; start the ranks with a launcher, for example\n"
            f"    symmem launch -n 2 -- {os.path.basename(sys.executable)} -m symmem.verify",
            file=sys.stderr,
        )
        return 2
    try:
        return run(flags)
    except (symmem.SymmemError, ImportError, RuntimeError, ValueError) as e:
        print(f"[rank {os.environ['RANK']}] {e}", file=sys.stderr)
        return 1 if isinstance(e, symmem.DivergenceError) else 2


if __name__ == "__main__":
    sys.exit(main())
