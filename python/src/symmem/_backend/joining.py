"""Opens the symmem group for a process group of torch.distributed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from symmem import errors
from symmem._rank import origin
from symmem._rank.group import LONGEST_TIMEOUT, Group
from symmem._rank.groups import New
from symmem._rank.session import session

OPENING_MS = 60_000
"""The minimum timeout for opening a world, whose processes may still be starting, in milliseconds.
"""


def spec_of(options: Any) -> origin.WorldSpec:
    """Return the ranks of a process group.

    Args:
        options: PyTorch's `_DistributedBackendOptions`.
    """
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    timeout: float = options.timeout.total_seconds()
    return origin.WorldSpec(ranks, options.group_rank, options.store, timeout)


def timeout_ms(spec: origin.WorldSpec) -> int:
    """Return the timeout of a process group in milliseconds."""
    return round(1000 * min(spec.timeout or origin.DEFAULT_TIMEOUT, LONGEST_TIMEOUT))


def opening_options(spec: origin.WorldSpec) -> dict[str, Any]:
    """Return the options of a world that a process group opens."""
    return {"timeout_ms": max(timeout_ms(spec), OPENING_MS)}


def members_of_main(spec: origin.WorldSpec, backend: str | None = None) -> list[int] | None:
    """Convert global ranks to ranks of the main world.

    Return None if the world does not contain all of them or does not have the given backend.
    """
    if not session.is_open or backend not in (None, session.runtime.backend):
        return None
    main = session.groups.world
    ranks = session.runtime.torch_ranks or tuple(range(main.size))
    if not set(spec.ranks) <= set(ranks):
        return None
    return [ranks.index(rank) for rank in spec.ranks]


def join(
    spec: origin.WorldSpec, name: str, *, is_default: bool
) -> tuple[Group, Callable[[], None]]:
    """Open the group of a process group that is implemented in Python. Collective.

    Return the group and a function that closes it. The world is chosen as in `create.create`.
    """
    if is_default and not session.is_open:
        world = session.open_from(spec, opening_options(spec))
        world.set_timeout(timeout_ms(spec) / 1000)
        return world, partial(session.close, True)
    members = members_of_main(spec)
    if members is None:
        asked = {
            "rank": spec.rank,
            "size": len(spec.ranks),
            "store": spec.store,
            **opening_options(spec),
        }
        world = session.open_world(None, asked, f"torch.distributed {name}")
        world.set_timeout(timeout_ms(spec) / 1000)
        return world, partial(world.close, force=True)
    main = session.groups.world
    if is_default and members == list(range(main.size)):
        return main, lambda: None
    new = New(name=f"torch.distributed {name}", timeout=timeout_ms(spec) / 1000)
    group = session.groups.find(members, new)
    return group, group.close


def close_or_warn(close: Callable[[], None]) -> None:
    """Close the group of a process group, and turn an error into a warning."""
    try:
        close()
    except errors.AbortedError:
        pass  # The works of the group have reported it.
    except errors.SymmemError as e:
        warnings.warn(f"closing a symmem process group: {e}", RuntimeWarning, stacklevel=2)
