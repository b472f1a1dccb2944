"""Finds the ranks of a world: ranks of torch.distributed, or ranks that options name."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from symmem import errors
from symmem._rank import rendezvous
from symmem._rank.group import LONGEST_TIMEOUT, Group
from symmem._rank.groups import NotAMemberError, process_group_of, ranks_of
from symmem._torch.pytorch import Torch

DEFAULT_TIMEOUT = 600.0
"""The default timeout in seconds, where neither the caller nor a process group has one."""


class Origin(NamedTuple):
    """The ranks of torch.distributed that become symmem's world.

    Attributes:
        ranks: their numbers in torch.distributed, in the order of symmem's ranks.
        rank: this process among them.
        store: the store through which they exchange addresses.
        timeout: their timeout in torch.distributed, in seconds, or None.
    """

    ranks: tuple[int, ...]
    rank: int
    store: Any
    timeout: float | None


def merged(given: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Join the arguments of `symmem.init` with its `options`, or raise if they contradict."""
    found = {name: value for name, value in given.items() if value is not None}
    for name, value in options.items():
        had = found.get(name)
        if isinstance(had, dict) and isinstance(value, dict):
            found[name] = merged(had, value)
        elif had is not None and value is not None and had != value:
            raise errors.InvalidError(
                f"symmem.init was given {name} {had!r}, and {value!r} in its options: give one"
            )
        elif value is not None:
            found[name] = value
    return found


def origin(found: Torch, which: Any) -> Origin:
    """Find the ranks of a process group, a mesh, a sequence of ranks or a name.

    None is the default process group.
    """
    if not found.initialized():
        raise errors.InvalidError(
            f"process_group {which!r} names ranks of torch.distributed, which is not initialised: "
            "call init_process_group before symmem.init, or leave process_group out where a "
            "launcher has set RANK and WORLD_SIZE"
        )
    if isinstance(which, Group):
        raise errors.InvalidError(
            f"{which!r} is a group of symmem's: symmem.init takes a process group or a mesh of "
            "PyTorch, or a sequence of ranks"
        )
    dist = found.distributed
    group = dist.group.WORLD if which is None else process_group_of(which)
    if group is None:
        return _of_ranks(found, ranks_of(which))
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise NotAMemberError("this rank is not in the process group")
    ranks = found.ranks_of(group)
    return Origin(ranks, dist.get_rank(group), found.store_of(group), found.timeout_of(group))


def _of_ranks(found: Torch, ranks: tuple[int, ...]) -> Origin:
    """Find some ranks of torch.distributed, which use the store of all ranks under a prefix."""
    dist = found.distributed
    size, mine = dist.get_world_size(), dist.get_rank()
    if not ranks or len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(size)):
        raise errors.InvalidError(
            f"process_group {list(ranks)}: not different ranks of the {size} of torch.distributed"
        )
    if mine not in ranks:
        raise NotAMemberError(f"this rank, {mine}, is not in process_group {list(ranks)}")
    world = dist.group.WORLD
    if (store := found.store_of(world)) is not None:
        store = dist.PrefixStore(f"symmem ranks {','.join(map(str, ranks))}", store)
    return Origin(ranks, ranks.index(mine), store, found.timeout_of(world))


def meet(of: Origin, options: dict[str, Any]) -> None:
    """Add a store and a token to the options, the same on all ranks. Collective."""
    if "timeout_ms" not in options:
        seconds = of.timeout or DEFAULT_TIMEOUT
        options["timeout_ms"] = round(1000 * min(seconds, LONGEST_TIMEOUT))
    timeout = options["timeout_ms"] / 1000
    warn_after = options.get("warn_after_ms", 0) / 1000 or rendezvous.WARN_AFTER
    found = rendezvous.options(of.store, of.rank, len(of.ranks), timeout, warn_after)
    options.update({**found, **options})


def names_ranks(options: dict[str, Any], which: Any, initialized: bool) -> bool:
    """Report whether the options name this rank, or raise if they are incomplete or ambiguous.

    Args:
        options: those of `symmem_open`.
        which: the process group that `symmem.init` was given.
        initialized: whether torch.distributed is.
    """
    rank, size = options.get("rank"), options.get("size")
    if rank is None and size is None:
        return False
    if which is not None:
        raise errors.InvalidError(
            f"options name rank {rank} of {size}, and process_group names ranks, too: give one"
        )
    if size is None or (rank is None and size != 1):
        raise errors.InvalidError(f"options name rank {rank} of {size}: give both rank and size")
    if not (isinstance(size, int) and isinstance(rank, int | None) and 0 <= (rank or 0) < size):
        raise errors.InvalidError(
            f"options name rank {rank!r} of {size!r}: the size must be a number above 0, and the "
            "rank a number from 0 to the size - 1"
        )
    if initialized and size != 1 and not options.get("store"):
        raise errors.InvalidError(
            f"options name rank {rank} of {size} and no store for these ranks; the store of "
            "torch.distributed is for others: pass process_group, such as the list of their ranks "
            "in torch.distributed, instead of options; or add a store and a token"
        )
    return True


def on_one_machine(options: dict[str, Any]) -> bool:
    """Report whether all ranks are known to be on one machine."""
    if (size := options.get("size")) is not None:
        return bool(options.get("local_size", size) == size)
    count = os.environ.get("WORLD_SIZE")
    return count is not None and count == os.environ.get("LOCAL_WORLD_SIZE")
