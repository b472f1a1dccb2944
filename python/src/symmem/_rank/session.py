"""Manages the worlds of this process.

`symmem.init` opens the main world and `symmem.finalize` closes it. `symmem.open_world` opens
others.
"""

from __future__ import annotations

import itertools
import json
import os
from functools import partial
from typing import Any, NamedTuple

from symmem import errors
from symmem._c.library import Library, library
from symmem._rank import origin
from symmem._rank.group import Group
from symmem._rank.groups import NEW, Groups, New, Place, process_group_of
from symmem._rank.runtime import Runtime
from symmem._rank.streams import HostStream
from symmem._torch.cuda import CudaPools
from symmem._torch.pytorch import Torch, loaded, pytorch

_VARIABLES = ("SYMMEM_", "NCCL_", "CUDA_", "XDG_", "HOME", "MASTER_", "TORCHELASTIC_")


class Session:
    """Owns the worlds of this process: the main world, which may be closed, and any others.

    The main world can be opened again after it was closed. In a forked child, open worlds stay
    open, and calls that use them raise `ForkedError`.

    Attributes:
        world: the group of all ranks of the main world. It is None if the main world is closed, and
            in a forked child.
    """

    __slots__ = ("_cuda", "_groups", "_others", "world")

    def __init__(self) -> None:
        self.world: Group | None = None
        self._groups: Groups | None = None
        # Oldest first. The tuple is replaced as a whole, because other threads read it.
        self._others: tuple[Groups, ...] = ()
        # PyTorch may call its allocators until the process exits, so the pools outlive the worlds.
        self._cuda: CudaPools | None = None

    @property
    def groups(self) -> Groups:
        """The groups of the main world. Raises `ClosedError` if it is not open."""
        if self._groups is None:
            raise errors.ClosedError("symmem is not initialized; call symmem.init first")
        return self._groups

    @property
    def runtime(self) -> Runtime:
        """This process as a rank of the main world. Raises `ClosedError` if it is not open."""
        return self.groups.runtime

    @property
    def runtimes(self) -> list[Runtime]:
        """This process as a rank of each open world, the main world first."""
        return [groups.runtime for groups in self._all()]

    @property
    def anyone(self) -> Runtime:
        """The first of `runtimes`. Raises `ClosedError` if no world is open."""
        if self._groups is None and self._others:
            return self._others[0].runtime
        return self.runtime

    @property
    def is_open(self) -> bool:
        """Whether the main world is open. It is False in a forked child."""
        return self._groups is not None and not self._groups.runtime.forked

    def _all(self) -> list[Groups]:
        return [*([] if self._groups is None else [self._groups]), *self._others]

    def open(self, process_group: Any, asked: dict[str, Any]) -> Group:
        """Open the main world and return the group of its ranks. See `symmem.init`.

        Args:
            process_group: as in `symmem.init`.
            asked: the device and options of `symmem_open`.
        """
        self._require_closed()
        return self._open(_prepare(process_group, asked), asked)

    def open_from(self, spec: origin.WorldSpec, asked: dict[str, Any]) -> Group:
        """Open the main world with ranks of torch.distributed. Collective.

        Args:
            spec: the ranks, which need not form a process group.
            asked: options of `symmem_open`.
        """
        self._require_closed()
        return self._open(prepare_from(spec, asked), asked)

    def _require_closed(self) -> None:
        if self._groups is not None:
            self._groups.runtime.require()
            raise errors.InvalidError("symmem is already initialized; call symmem.finalize first")

    def _open(self, start: Start, asked: dict[str, Any]) -> Group:
        """Open the main world with complete options."""
        lib = library()
        lib.call("symmem_open", *start.text())
        try:
            cuda = self._pools(start.torch, lib, start.ordinal)
            world = lib.number("symmem_world")
            self._groups = Groups(Runtime(lib, world, True, cuda, start.ranks, asked), 0)
        except BaseException:
            lib.raw.symmem_close(1)
            raise
        self.world = self._groups.world
        return self.world

    def open_world(self, process_group: Any, asked: dict[str, Any], name: str | None) -> Group:
        """Open another world and return the group of its ranks. See `symmem.open_world`."""
        asked = dict(asked)
        pool = json.dumps(asked.pop("pool", {})).encode()
        start = _prepare(process_group, asked)
        lib = library()
        name = self._unused(name or start.name)
        handle = lib.number("symmem_world_open", *start.text())
        try:
            cuda = self._pools(start.torch, lib, start.ordinal)
            runtime = Runtime(lib, handle, False, cuda, start.ranks, asked)
            groups = Groups(runtime, lib.number("symmem_pool_open", handle, len(pool), pool), name)
        except BaseException:
            lib.raw.symmem_world_close(handle, 1)
            raise
        groups.world.close_world = partial(self._close_world, groups)
        if start.process_group is not None:
            groups.remember(start.process_group, groups.world)
        self._others = (*self._others, groups)
        return groups.world

    def _unused(self, name: str) -> str:
        """Return the name, with a number appended if an open group already uses it."""
        names = itertools.chain([name], (f"{name} #{n}" for n in itertools.count(2)))
        return next(n for n in names if not any(g.known(n) for g in self._all()))

    def _close_world(self, groups: Groups, force: bool) -> None:
        groups.runtime.require()
        groups.close(force)
        self._others = tuple(g for g in self._others if g is not groups)

    def find(self, which: Any, new: New = NEW, world: Group | None = None) -> Group:
        """Return a group, opening it on its first use. See `symmem.group`."""
        if world is not None:
            for groups in self._all():
                if groups.runtime is world.runtime:
                    return groups.find(which, new)
            raise errors.ClosedError(f"the world of {world!r} has been closed")
        for groups in self._others:
            if known := groups.known(which):
                return known
        return self.groups.find(which, new)

    def place(self, name: str) -> Place:
        """Return this rank's place in the group with the given name, without opening the group."""
        for groups in self._others:
            if known := groups.known(name):
                return Place(known.rank, known.size)
        return self.groups.place(name)

    def default_streams(self) -> list[HostStream]:
        """Return the streams on which the worlds' collectives run on the host backend."""
        return [groups.world.lanes.main for groups in self._all()]

    def matching_world(self, process_group: Any, asked: dict[str, Any]) -> Group | None:
        """Return the main world if it is open, or None. Raise `InvalidError` if its options differ.

        Options that the caller has not passed match any value, so that several libraries of a
        process can share the world.

        Args:
            process_group: as in `symmem.init`.
            asked: the other arguments of `symmem.init`.
        """
        if not self.is_open:
            return None
        runtime, world = self.runtime, self.groups.world
        had = {**runtime.asked, "backend": runtime.backend}
        for name, want in asked.items():
            agrees = want is None or (name, want) == ("backend", "auto") or want == had.get(name)
            if not agrees:
                raise errors.InvalidError(
                    f"symmem is already initialized with {name} {had.get(name)!r} instead of "
                    f"{want!r}; call symmem.finalize first"
                )
        if process_group is not None and process_group is not world:
            _require_ranks(runtime, origin.world_spec(pytorch(), process_group).ranks)
        return world

    def close(self, force: bool) -> None:
        """Close the main world if it is open. See `symmem.finalize`."""
        if self._groups is None:
            return
        self._groups.runtime.require()
        self._groups.close(force)
        self._groups = self.world = None

    def after_fork(self) -> None:
        """Make calls that use a world raise `ForkedError` in a forked child."""
        for groups in self._all():
            groups.after_fork()
        self.world = None

    def _pools(self, found: Torch | None, lib: Library, ordinal: int | None) -> CudaPools | None:
        """Return the CUDA pools of this process, creating them on the first call."""
        if found is None or ordinal is None:
            return None
        if self._cuda is None:
            found.module.cuda.init()
            self._cuda = CudaPools(found, lib, ordinal)
        if self._cuda.device != ordinal:
            raise errors.UnsupportedError(
                f"symmem was initialized on device {self._cuda.device} before, and a process can "
                "use only one device"
            )
        return self._cuda


session = Session()
"""The session of this process."""

os.register_at_fork(after_in_child=session.after_fork)


def find(group: Any) -> Group:
    """Return the group of a call. None means the main world.

    Every call uses find. It is not a method, because a method would take 40 ns longer.
    """
    world = session.world
    if group is None and world is not None:
        return world
    if group.__class__ is Group:
        return group
    return session.find(group)


class Start(NamedTuple):
    """The parameters for opening a world.

    Attributes:
        torch: PyTorch, if the program uses it.
        options: the options of `symmem_open`.
        ranks: the global ranks in torch.distributed, or None.
        process_group: the process group that the caller passed, or None.
        ordinal: the ordinal of the CUDA device, or None.
        name: a description of the ranks.
    """

    torch: Torch | None
    options: dict[str, Any]
    ranks: tuple[int, ...] | None
    process_group: Any
    ordinal: int | None
    name: str

    def text(self) -> tuple[int, bytes]:
        """Return the length of the encoded options, and the options."""
        data = json.dumps(self.options).encode()
        return len(data), data


def _prepare(process_group: Any, asked: dict[str, Any]) -> Start:
    """Find the ranks of a world and complete its options. Collective."""
    library().answers.from_main()
    found = pytorch() if process_group is not None or loaded() else None
    options = {k: v for k, v in asked.items() if k != "device"}
    ranks = _add_ranks(found, process_group, options)
    given = None
    if process_group is not None and not isinstance(process_group, list | tuple):
        given = process_group_of(process_group)
    return _start(found, options, ranks, given, asked)


def prepare_from(spec: origin.WorldSpec, asked: dict[str, Any]) -> Start:
    """Complete the options of a world of given ranks. Collective."""
    library().answers.from_main()
    options = {k: v for k, v in asked.items() if k != "device"}
    origin.add_store(spec, options)
    return _start(pytorch(), options, spec.ranks, None, asked)


def _start(
    found: Torch | None,
    options: dict[str, Any],
    ranks: tuple[int, ...] | None,
    given: Any,
    asked: dict[str, Any],
) -> Start:
    """Add defaults to the options of a world that has ranks and a store."""
    ordinal = _complete(found, asked.get("device"), options)
    name = f"world of ranks {','.join(map(str, ranks))}" if ranks else "world of options"
    return Start(found, options, ranks, given, ordinal, name)


def _require_ranks(runtime: Runtime, ranks: tuple[int, ...]) -> None:
    """Raise `InvalidError` unless the open world has the given ranks of torch.distributed."""
    if ranks != runtime.torch_ranks:
        have = "those of the launcher" if runtime.torch_ranks is None else runtime.torch_ranks
        raise errors.InvalidError(
            f"symmem is already initialized on ranks {have} instead of {ranks}. Initialize it once "
            "on all ranks that communicate, and pass their process groups to symmem.group; or call "
            "symmem.finalize first"
        )


def _add_ranks(
    found: Torch | None, process_group: Any, options: dict[str, Any]
) -> tuple[int, ...] | None:
    """Add the rank, the size and the store to the options. Collective.

    Returns:
        The global ranks in torch.distributed, or None if the ranks are those of a launcher or of
        the options.
    """
    initialized = found is not None and found.initialized()
    named = origin.names_ranks(options, process_group, initialized)
    if named and not isinstance(options.get("store"), str | None):
        timeout = options.get("timeout_ms", 0) / 1000 or None
        everyone = tuple(range(options["size"]))
        store = options.pop("store")
        origin.add_store(origin.WorldSpec(everyone, options["rank"], store, timeout), options)
    if found is None or named or (process_group is None and not initialized):
        return None
    spec = origin.world_spec(found, process_group)
    origin.add_store(spec, options)
    return spec.ranks


def _complete(found: Torch | None, device: Any, options: dict[str, Any]) -> int | None:
    """Add defaults to the options, and return the ordinal of the CUDA device."""
    options.setdefault("backend", "auto")
    options.setdefault("timeout_ms", round(1000 * origin.DEFAULT_TIMEOUT))
    ordinal = _ordinal(found, device, options["backend"])
    if ordinal is not None:
        options["device"] = ordinal
    if options.get("check") is None and origin.on_one_machine(options):
        options["check"] = "every"
    if "callsites" in options:
        options["callsites"] = bool(options["callsites"])
    # The library copied the environment when it was loaded, so pass the current variables.
    variables = {k: v for k, v in os.environ.items() if k.startswith(_VARIABLES)}
    options["environment"] = {**variables, **options.get("environment", {})}
    return ordinal


def _ordinal(found: Torch | None, device: Any, backend: str) -> int | None:
    """Return the ordinal of the given CUDA device, or of PyTorch's current device."""
    if backend == "host" or found is None:
        return None
    cuda = found.module.cuda
    if not cuda.is_available():
        return None
    if device is not None:
        index = found.module.device(device).index
        return cuda.current_device() if index is None else int(index)
    local = os.environ.get("LOCAL_RANK", "")
    if not cuda.is_initialized() and local.isdigit() and int(local) < cuda.device_count():
        cuda.set_device(int(local))
    return int(cuda.current_device())
