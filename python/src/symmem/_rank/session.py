"""The rank that is open in this process: `symmem.init` opens it, `symmem.finalize` closes it."""

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

_opened: Groups | None = None
_world: Group | None = None
"""The world of `_opened`, for the shortest way to it; None in a child of fork."""
_cuda: CudaPools | None = None
"""PyTorch's side of the pools, which outlives the rank: see `_pools`."""


def groups() -> Groups:
    """Return the groups of the open rank, or raise `ClosedError`."""
    if _opened is None:
        raise errors.ClosedError("symmem is not open: call symmem.init first")
    return _opened


def current() -> Runtime:
    """Return the open rank, or raise `ClosedError`."""
    return groups().runtime


def find(group: Any) -> Group:
    """Find the group of a call; None is the world."""
    world = _world
    if group is None and world is not None:
        return world
    if group.__class__ is Group:
        return group
    return groups().find(group)


def is_open() -> bool:
    """Report whether symmem is open in this process."""
    return _opened is not None and not _opened.runtime.closed and not _opened.runtime.forked


def _in_child() -> None:
    global _world
    if _opened is not None:
        _opened.after_fork()
        _world = None


os.register_at_fork(after_in_child=_in_child)


def opened_alike(process_group: Any, asked: dict[str, Any]) -> Group | None:
    """Return the world of the open rank, or None; raise where other things were asked of it.

    What is not asked for agrees with anything, so that several libraries of a process share a rank.

    Args:
        process_group: as `symmem.init` takes it.
        asked: what else it was given.
    """
    if not is_open():
        return None
    runtime = current()
    had = {**runtime.asked, "backend": runtime.backend}
    for name, want in asked.items():
        agrees = want is None or (name, want) == ("backend", "auto") or want == had.get(name)
        if not agrees:
            raise errors.InvalidError(
                f"symmem is open already, with {name} {had.get(name)!r} instead of {want!r}; "
                "symmem.finalize closes it"
            )
    if process_group is not None and process_group is not groups().world:
        ranks = origin.origin(pytorch(), process_group).ranks
        if ranks != runtime.torch_ranks:
            have = "those of the launcher" if runtime.torch_ranks is None else runtime.torch_ranks
            raise errors.InvalidError(
                f"symmem is open already, on the ranks {have} instead of {ranks}: open it once, "
                "on all ranks that work together, and pass process groups of these to "
                "symmem.group; symmem.finalize closes it"
            )
    return groups().world


def open_rank(process_group: Any, asked: dict[str, Any]) -> Group:
    """Open this rank and return its world: see `symmem.init`.

    Args:
        process_group: as `symmem.init` takes it.
        asked: what else it was given: the device, and options of `symmem_open`.
    """
    global _opened, _world
    if _opened is not None and not _opened.runtime.closed:
        _opened.runtime.require()
        raise errors.InvalidError("symmem is open already; symmem.finalize closes it")
    lib = library()
    lib.answers.from_main()
    found = pytorch() if process_group is not None or loaded() else None
    initialized = found is not None and found.initialized()
    options = {k: v for k, v in asked.items() if k != "device"}
    ranks: tuple[int, ...] | None = None
    named = origin.names_ranks(options, process_group, initialized)
    if found is not None and not named and (process_group is not None or initialized):
        of = origin.origin(found, process_group)
        origin.meet(of, options)
        ranks = of.ranks
    options.setdefault("backend", "auto")
    options.setdefault("timeout_ms", round(1000 * origin.DEFAULT_TIMEOUT))
    ordinal = _ordinal(found, asked.get("device"), options["backend"])
    if ordinal is not None:
        options["device"] = ordinal
    if options.get("check") is None and origin.on_one_machine(options):
        options["check"] = "every"
    if "callsites" in options:
        options["callsites"] = bool(options["callsites"])
    # The library freezes what the environment was when it was loaded.
    variables = {k: v for k, v in os.environ.items() if k.startswith(_VARIABLES)}
    options["environment"] = {**variables, **options.get("environment", {})}
    text = json.dumps(options).encode()
    lib.call("symmem_open", len(text), text)
    try:
        _opened = Groups(Runtime(lib, _pools(found, lib, ordinal), ranks, asked))
    except BaseException:
        lib.raw.symmem_close(1)
        raise
    _world = _opened.world
    return _world


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


def _pools(found: Torch | None, lib: Library, ordinal: int | None) -> CudaPools | None:
    """Make PyTorch's side of the pools, once for a process."""
    global _cuda
    if found is None or ordinal is None:
        return None
    if _cuda is None:
        found.module.cuda.init()
        _cuda = CudaPools(found, lib, ordinal)
    if _cuda.device != ordinal:
        raise errors.UnsupportedError(
            f"symmem was opened on device {_cuda.device} before; a process has one device"
        )
    return _cuda


def close_rank(force: bool) -> None:
    """Close this rank: see `symmem.finalize`. Does nothing if symmem is not open."""
    global _opened, _world
    if _opened is None or _opened.runtime.closed:
        return
    _opened.runtime.require()
    _opened.runtime.close(force)
    _opened.retire()
    _opened = _world = None
