"""Determines the ranks of a world, from torch.distributed or from the options of `init`."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from symmem import errors
from symmem._rank import rendezvous
from symmem._rank.group import LONGEST_TIMEOUT, Group
from symmem._rank.groups import NotAMemberError, process_group_of, ranks_of
from symmem._torch.pytorch import Torch

DEFAULT_TIMEOUT = 600.0
"""The timeout in seconds if neither the caller nor the process group specifies one."""


class WorldSpec(NamedTuple):
    """The ranks of torch.distributed that become symmem's world.

    Attributes:
        ranks: the global ranks, in the order of symmem's ranks.
        rank: the rank of this process in symmem's world.
        store: the store through which the ranks exchange addresses.
        timeout: the timeout of the process group, in seconds, or None.
    """

    ranks: tuple[int, ...]
    rank: int
    store: Any
    timeout: float | None


def merged(given: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Merge the arguments of `symmem.init` with its `options`.

    Raise `InvalidError` if an argument and an option conflict.
    """
    found = {name: value for name, value in given.items() if value is not None}
    for name, value in options.items():
        had = found.get(name)
        if isinstance(had, dict) and isinstance(value, dict):
            found[name] = merged(had, value)
        elif had is not None and value is not None and had != value:
            raise errors.InvalidError(
                f"symmem.init has {name} {had!r} as an argument, but {value!r} in its options; "
                "pass only one of them"
            )
        elif value is not None:
            found[name] = value
    return found


def world_spec(found: Torch, which: Any) -> WorldSpec:
    """Return the ranks of a process group, given as itself, a mesh, a sequence of ranks or a name.

    None means the default process group.
    """
    if not found.initialized():
        raise errors.InvalidError(
            f"process_group is {which!r}, but torch.distributed is not initialized; call "
            "init_process_group before symmem.init, or omit process_group if a launcher has set "
            "RANK and WORLD_SIZE"
        )
    if isinstance(which, Group):
        raise errors.InvalidError(
            f"process_group is {which!r}, but symmem.init needs a PyTorch process group or mesh, "
            "or a sequence of ranks"
        )
    dist = found.distributed
    group = dist.group.WORLD if which is None else process_group_of(which)
    if group is None:
        return _spec_of_ranks(found, ranks_of(which))
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise NotAMemberError("this rank is not in the process group")
    ranks = found.ranks_of(group)
    return WorldSpec(ranks, dist.get_rank(group), found.store_of(group), found.timeout_of(group))


def _spec_of_ranks(found: Torch, ranks: tuple[int, ...]) -> WorldSpec:
    """Return the given global ranks, which use the default group's store under a prefix."""
    dist = found.distributed
    size, rank = dist.get_world_size(), dist.get_rank()
    if not ranks or len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(size)):
        raise errors.InvalidError(
            f"process_group is {list(ranks)}, but needs distinct global ranks from 0 to {size - 1}"
        )
    if rank not in ranks:
        raise NotAMemberError(f"this rank, {rank}, is not in process_group {list(ranks)}")
    world = dist.group.WORLD
    if (store := found.store_of(world)) is not None:
        store = dist.PrefixStore(f"symmem ranks {','.join(map(str, ranks))}", store)
    return WorldSpec(ranks, ranks.index(rank), store, found.timeout_of(world))


def add_store(spec: WorldSpec, options: dict[str, Any]) -> None:
    """Add the ranks' common store and token to the options. Collective."""
    if "timeout_ms" not in options:
        seconds = spec.timeout or DEFAULT_TIMEOUT
        options["timeout_ms"] = round(1000 * min(seconds, LONGEST_TIMEOUT))
    timeout = options["timeout_ms"] / 1000
    warn_after = options.get("warn_after_ms", 0) / 1000 or rendezvous.WARN_AFTER
    found = rendezvous.options(spec.store, spec.rank, len(spec.ranks), timeout, warn_after)
    options.update({**found, **options})


def names_ranks(options: dict[str, Any], which: Any, initialized: bool) -> bool:
    """Return whether the options contain the rank and size.

    Raise `InvalidError` if they are incomplete or invalid, or conflict with `process_group`.

    Args:
        options: the options of `symmem_open`.
        which: the `process_group` argument of `symmem.init`.
        initialized: whether torch.distributed is initialized.
    """
    rank, size = options.get("rank"), options.get("size")
    if rank is None and size is None:
        return False
    if which is not None:
        raise errors.InvalidError(
            f"the options contain rank {rank} and size {size}, but process_group also determines "
            "the ranks; pass only one of them"
        )
    if size is None or (rank is None and size != 1):
        raise errors.InvalidError(
            f"the options contain rank {rank} and size {size}; pass both a rank and a size"
        )
    if not (isinstance(size, int) and isinstance(rank, int | None) and 0 <= (rank or 0) < size):
        raise errors.InvalidError(
            f"the options contain rank {rank!r} and size {size!r}; the size must be an integer "
            "above 0, and the rank an integer from 0 to size - 1"
        )
    if initialized and size != 1 and not options.get("store"):
        raise errors.InvalidError(
            f"the options contain rank {rank} and size {size}, but no store, and the store of "
            "torch.distributed serves other ranks; pass process_group instead, for example a list "
            "of global ranks, or add a store and a token to the options"
        )
    return True


def on_one_machine(options: dict[str, Any]) -> bool:
    """Return whether all ranks are known to be on one machine."""
    if (size := options.get("size")) is not None:
        return bool(options.get("local_size", size) == size)
    count = os.environ.get("WORLD_SIZE")
    return count is not None and count == os.environ.get("LOCAL_WORLD_SIZE")
