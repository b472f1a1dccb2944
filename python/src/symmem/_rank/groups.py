"""Names, finds and opens the groups of a world."""

from __future__ import annotations

import ctypes as c
import operator
from typing import Any, NamedTuple

from symmem import errors
from symmem._rank.group import Group, milliseconds
from symmem._rank.runtime import Runtime
from symmem._rank.scope import scopes_of
from symmem._torch.pytorch import loaded, pytorch


class NotAMemberError(errors.InvalidError):
    """This rank is not in the group."""


class New(NamedTuple):
    """Options for opening a group. See `symmem.group`."""

    domain: Group | None = None
    name: str | None = None
    timeout: float | None = None


NEW = New()


class Place(NamedTuple):
    """This rank's number in a group, and the group's size."""

    rank: int
    size: int


class Groups:
    """The groups of an open world.

    Attributes:
        runtime: the rank.
        world: the group of all ranks.
    """

    def __init__(self, runtime: Runtime, pool: int, name: str = "world"):
        self.runtime = runtime
        everyone = tuple(range(runtime.size))
        self._pools: dict[tuple[int, ...], int] = {everyone: pool}
        self._named: dict[str, Group] = {}
        self._process_groups: dict[int, tuple[Any, Group]] = {}
        self.world = self._add(name, runtime.world, everyone, pool)

    def find(self, which: Any = None, new: New = NEW) -> Group:
        """Return a group, opening it on its first use. See `symmem.group`."""
        self.runtime.require()
        if isinstance(which, Group | None):
            return which or self.world
        if known := self.known(which):
            return known
        if isinstance(which, str):
            return self._from_torch(self._process_group(which), new)
        found = process_group_of(which)
        if found is not None:
            return self._from_torch(found, new)
        ranks = ranks_of(which)
        return self._open(new.name or f"ranks {','.join(map(str, ranks))}", ranks, new)

    def known(self, which: Any) -> Group | None:
        """Return an open group by its name or process group, or None."""
        if isinstance(which, str):
            return self._get(which)
        known = self._process_groups.get(id(which))
        return None if known is None else known[1]

    def remember(self, process_group: Any, group: Group) -> None:
        """Associate a process group with a group.

        The reference to the process group prevents another object from getting its id.
        """
        self._process_groups[id(process_group)] = (process_group, group)

    def place(self, name: str) -> Place:
        """Return this rank's place in the group with the given name, without opening the group."""
        self.runtime.require()
        if (known := self._get(name)) is not None:
            return Place(known.rank, known.size)
        found = self._process_group(name)
        return Place(found.rank(), found.size())

    def _process_group(self, name: str) -> Any:
        """Return the process group with the given name. The error lists symmem's own names."""
        try:
            return process_group_of(name)
        except errors.InvalidError as e:
            names = sorted(n for n, group in list(self._named.items()) if not group.closed)
            raise errors.InvalidError(f"{e}; symmem's own groups are {names}") from None

    def _from_torch(self, process_group: Any, new: New) -> Group:
        torch_ranks = self.runtime.torch_ranks
        if torch_ranks is None:
            raise errors.InvalidError(
                f"{process_group!r} is not a group of symmem, and symmem was not initialized from "
                "torch.distributed; call symmem.init after init_process_group"
            )
        dist = pytorch().distributed
        if process_group is dist.GroupMember.NON_GROUP_MEMBER:
            raise NotAMemberError("this rank is not in the process group")
        members = pytorch().ranks_of(process_group)
        missing = [r for r in members if r not in torch_ranks]
        if missing:
            raise errors.InvalidError(
                f"ranks {missing} of the process group are not in symmem's world, "
                f"{list(torch_ranks)}; call symmem.init with a process group that contains them"
            )
        ranks = tuple(torch_ranks.index(r) for r in members)
        if process_group is dist.group.WORLD and ranks == self.world.ranks:
            found = self.world
        else:
            found = self._open(f"torch {process_group.group_name} {ranks}", ranks, new)
        self.remember(process_group, found)
        return found

    def _open(self, name: str, ranks: tuple[int, ...], new: New) -> Group:
        if (known := self._get(name)) is not None:
            return known
        rank, size = self.runtime.rank, self.runtime.size
        if not ranks or not set(ranks) <= set(range(size)):
            raise errors.InvalidError(f"invalid group ranks {ranks}: the world has {size} ranks")
        if rank not in ranks:
            raise NotAMemberError(f"rank {rank} is not in the group {name!r}: {ranks}")
        text = name.encode()
        array = (c.c_int32 * len(ranks))(*ranks)
        limit = 0 if new.timeout is None else milliseconds(new.timeout)
        handle = self.runtime.library.number(
            *("symmem_world_group_open", self.runtime.world),
            *(len(text), text, len(ranks), array, limit),
        )
        return self._add(name, handle, ranks, self._pool(handle, ranks, new.domain))

    def _add(self, name: str, handle: int, ranks: tuple[int, ...], pool: int) -> Group:
        """Add a group, and remove closed ones."""
        for closed in [n for n, group in list(self._named.items()) if group.closed]:
            self._named.pop(closed, None)
        group = Group(self.runtime, handle, name, ranks, pool, scopes_of)
        self._named[name] = group
        return group

    def _get(self, name: str) -> Group | None:
        """Return the open group with the given name, or None."""
        found = self._named.get(name)
        return None if found is None or found.closed else found

    def _pool(self, handle: int, ranks: tuple[int, ...], domain: Group | None) -> int:
        """Return the pool of the group's domain, or the pool of all groups with these ranks."""
        if domain is not None:
            if not set(ranks) <= set(domain.ranks):
                raise errors.InvalidError(f"the domain {domain!r} does not contain ranks {ranks}")
            return domain.pool
        if ranks not in self._pools:
            opened = self.runtime.library.number("symmem_pool_open", handle, 0, b"")
            self._pools[ranks] = opened
        return self._pools[ranks]

    def close(self, force: bool) -> None:
        """Close the world. See `symmem.finalize`."""
        groups, streams = list(self._named.values()), self.runtime.streams
        if force:
            for group in groups:
                streams.abandon(group.lanes)
        self.runtime.close(force)
        for group in groups:
            streams.drop(group.lanes)
            group.retire()

    def after_fork(self) -> None:
        """Make calls that use this world raise `ForkedError` in a forked child."""
        self.runtime.forked = True
        for group in self._named.values():
            group.stop_diverting()


def process_group_of(which: Any) -> Any:
    """Return the process group for a mesh or a name, or None for a sequence of ranks."""
    if isinstance(which, str):
        found = pytorch().group_named(which) if loaded() else None
        if found is None:
            raise errors.InvalidError(f"PyTorch has no process group named {which!r}")
        return found
    dist = pytorch().distributed if loaded() else None
    if dist is None:
        return None
    if isinstance(which, dist.ProcessGroup) or which is dist.GroupMember.NON_GROUP_MEMBER:
        return which
    mesh, dimension = which if isinstance(which, tuple) and len(which) == 2 else (which, None)
    if not isinstance(mesh, dist.device_mesh.DeviceMesh):
        return None
    if mesh.ndim > 1 and dimension is None:
        raise errors.InvalidError(
            f"a mesh with {mesh.ndim} dimensions is not a group; pass (mesh, dimension) or "
            "mesh.get_group(dimension)"
        )
    if mesh.get_coordinate() is None:
        raise NotAMemberError(f"this rank is not in {mesh}")
    try:
        return mesh.get_group(dimension or 0)
    except (LookupError, ValueError, RuntimeError) as e:
        raise errors.InvalidError(f"{mesh} has no dimension {dimension!r}: {e}") from None


def ranks_of(which: Any) -> tuple[int, ...]:
    """Convert a sequence of ranks to a tuple."""
    try:
        if not isinstance(which, bytes | bytearray):
            return tuple(operator.index(r) for r in which)
        raise TypeError
    except TypeError:
        raise errors.InvalidError(
            f"{which!r} is not a group; pass a PyTorch process group or mesh, a sequence of ranks, "
            "the name of an open group, or a symmem.Group"
        ) from None
