"""The rank of this process: `symmem.init` opens it, `symmem.finalize` closes it."""

from __future__ import annotations

import json
import os
from typing import Any

from symmem import errors
from symmem._c.library import Library, library
from symmem._rank import origin
from symmem._rank.group import Group
from symmem._rank.groups import Groups
from symmem._rank.runtime import Runtime
from symmem._torch.cuda import CudaPools
from symmem._torch.pytorch import Torch, loaded, pytorch

_VARIABLES = ("SYMMEM_", "NCCL_", "CUDA_", "XDG_", "HOME", "MASTER_", "TORCHELASTIC_")


class Session:
    """Owns the rank of this process, which is open or closed.

    `open` and `close` may alternate. In a child of fork an open rank stays open for good, and what
    needs it raises `ForkedError`.

    Attributes:
        world: the group of all ranks while the rank is open; None otherwise, and after a fork.
    """

    __slots__ = ("_cuda", "_groups", "world")

    def __init__(self) -> None:
        self.world: Group | None = None
        self._groups: Groups | None = None
        # PyTorch may call its allocators until the process ends, so this outlives the rank.
        self._cuda: CudaPools | None = None

    @property
    def groups(self) -> Groups:
        """The groups of the open rank; `ClosedError` if there is none."""
        if self._groups is None:
            raise errors.ClosedError("symmem is not open: call symmem.init first")
        return self._groups

    @property
    def runtime(self) -> Runtime:
        """The open rank; `ClosedError` if there is none."""
        return self.groups.runtime

    @property
    def is_open(self) -> bool:
        """Whether this process has an open rank, and not one of the process that forked it."""
        return self._groups is not None and not self._groups.runtime.forked

    def open(self, process_group: Any, asked: dict[str, Any]) -> Group:
        """Open the rank and return its world: see `symmem.init`.

        Args:
            process_group: as `symmem.init` takes it.
            asked: what else it was given: the device, and options of `symmem_open`.
        """
        self._require_closed()
        found = pytorch() if process_group is not None or loaded() else None
        options = {k: v for k, v in asked.items() if k != "device"}
        ranks = _meet(found, process_group, options)
        return self._open(found, ranks, asked, options)

    def open_from(self, of: origin.Origin, asked: dict[str, Any]) -> Group:
        """Open the rank with ranks of torch.distributed, and return its world. Collective.

        Args:
            of: the ranks, which need not be those of a process group.
            asked: options of `symmem_open`.
        """
        self._require_closed()
        options = dict(asked)
        origin.meet(of, options)
        return self._open(pytorch(), of.ranks, asked, options)

    def _require_closed(self) -> None:
        if self._groups is not None:
            self._groups.runtime.require()
            raise errors.InvalidError("symmem is open already; symmem.finalize closes it")

    def _open(
        self,
        found: Torch | None,
        ranks: tuple[int, ...] | None,
        asked: dict[str, Any],
        options: dict[str, Any],
    ) -> Group:
        """Open the rank whose ranks have met."""
        lib = library()
        lib.answers.from_main()
        ordinal = _complete(found, asked.get("device"), options)
        text = json.dumps(options).encode()
        lib.call("symmem_open", len(text), text)
        try:
            self._groups = Groups(Runtime(lib, self._pools(found, lib, ordinal), ranks, asked))
        except BaseException:
            lib.raw.symmem_close(1)
            raise
        self.world = self._groups.world
        return self.world

    def opened_alike(self, process_group: Any, asked: dict[str, Any]) -> Group | None:
        """Return the world of the open rank, or None; raise if other things were asked of it.

        What is not asked for agrees with anything, so several libraries of a process share a rank.

        Args:
            process_group: as `symmem.init` takes it.
            asked: what else it was given.
        """
        if not self.is_open:
            return None
        runtime, world = self.runtime, self.groups.world
        had = {**runtime.asked, "backend": runtime.backend}
        for name, want in asked.items():
            agrees = want is None or (name, want) == ("backend", "auto") or want == had.get(name)
            if not agrees:
                raise errors.InvalidError(
                    f"symmem is open already, with {name} {had.get(name)!r} instead of {want!r}; "
                    "symmem.finalize closes it"
                )
        if process_group is not None and process_group is not world:
            _require_ranks(runtime, origin.origin(pytorch(), process_group).ranks)
        return world

    def close(self, force: bool) -> None:
        """Close the rank: see `symmem.finalize`. Do nothing if none is open."""
        if self._groups is None:
            return
        self._groups.runtime.require()
        self._groups.runtime.close(force)
        self._groups.retire()
        self._groups = self.world = None

    def after_fork(self) -> None:
        """Make everything that uses the rank raise, in a child of fork."""
        if self._groups is not None:
            self._groups.after_fork()
            self.world = None

    def _pools(self, found: Torch | None, lib: Library, ordinal: int | None) -> CudaPools | None:
        """Make PyTorch's side of the pools, once for the process."""
        if found is None or ordinal is None:
            return None
        if self._cuda is None:
            found.module.cuda.init()
            self._cuda = CudaPools(found, lib, ordinal)
        if self._cuda.device != ordinal:
            raise errors.UnsupportedError(
                f"symmem was opened on device {self._cuda.device} before; a process has one device"
            )
        return self._cuda


session = Session()
"""The only one: the library has one rank in a process."""

os.register_at_fork(after_in_child=session.after_fork)


def find(group: Any) -> Group:
    """Find the group of a call; None is the world.

    It is a function, since a method takes 40 ns longer and every call begins here.
    """
    world = session.world
    if group is None and world is not None:
        return world
    if group.__class__ is Group:
        return group
    return session.groups.find(group)


def _require_ranks(runtime: Runtime, ranks: tuple[int, ...]) -> None:
    """Raise unless the world of the open rank consists of some ranks of torch.distributed."""
    if ranks != runtime.torch_ranks:
        have = "those of the launcher" if runtime.torch_ranks is None else runtime.torch_ranks
        raise errors.InvalidError(
            f"symmem is open already, on the ranks {have} instead of {ranks}: open it once, "
            "on all ranks that work together, and pass process groups of these to "
            "symmem.group; symmem.finalize closes it"
        )


def _meet(
    found: Torch | None, process_group: Any, options: dict[str, Any]
) -> tuple[int, ...] | None:
    """Complete the options with what ranks of torch.distributed find out together.

    It returns their numbers there, or None where the ranks come from elsewhere.
    """
    initialized = found is not None and found.initialized()
    named = origin.names_ranks(options, process_group, initialized)
    if found is None or named or (process_group is None and not initialized):
        return None
    of = origin.origin(found, process_group)
    origin.meet(of, options)
    return of.ranks


def _complete(found: Torch | None, device: Any, options: dict[str, Any]) -> int | None:
    """Complete the options with defaults, and return the ordinal of the CUDA device."""
    options.setdefault("backend", "auto")
    options.setdefault("timeout_ms", round(1000 * origin.DEFAULT_TIMEOUT))
    ordinal = _ordinal(found, device, options["backend"])
    if ordinal is not None:
        options["device"] = ordinal
    if options.get("check") is None and origin.on_one_machine(options):
        options["check"] = "every"
    if "callsites" in options:
        options["callsites"] = bool(options["callsites"])
    # The library freezes what the environment was when it was loaded.
    variables = {k: v for k, v in os.environ.items() if k.startswith(_VARIABLES)}
    options["environment"] = {**variables, **options.get("environment", {})}
    return ordinal


def _ordinal(found: Torch | None, device: Any, backend: str) -> int | None:
    """Choose the CUDA device: PyTorch's current one unless the caller names one."""
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
