"""This process as one rank: what `symmem.init` opens and `symmem.finalize` closes."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from symmem import _rendezvous, errors
from symmem._attach import Attachments
from symmem._constants import Word
from symmem._group import (
    Group,
    NotAMemberError,
    open_group,
    process_group_of,
    ranks_of,
)
from symmem._library import Library, library
from symmem._routing import Router
from symmem._scope import Current
from symmem._streams import HostStreams
from symmem._torch import Torch, loaded, pytorch
from symmem._work import SideStream

if TYPE_CHECKING:
    from symmem._cuda import CudaPools

DEFAULT_TIMEOUT = 600.0
"""How many seconds a rank waits for others where neither the caller nor a process group says."""

LONGEST_TIMEOUT = 24 * 60 * 60.0
"""The longest that the library takes, a day."""

_VARIABLES = ("SYMMEM_", "NCCL_", "CUDA_", "XDG_", "HOME", "MASTER_", "TORCHELASTIC_")


class Runtime:
    """An open rank.

    Attributes:
        rank, size: this rank and the number of ranks, in the world of symmem.
        backend: "nccl" or "host".
        device: the ordinal of the CUDA device, None on the host backend.
        world: the group of all ranks.
        groups: all open groups by name.
        faults: the shared word that counts groups that have failed, as it was before.
        streams: the host backend's.
        callsites: whether lines of Python are noted with what they do.
        asked: what `symmem.init` was given.
    """

    def __init__(self, lib: Library, cuda: CudaPools | None, torch_ranks: tuple[int, ...] | None):
        described = lib.json("symmem_describe")
        self.library = lib
        self.faults = lib.words[Word.FAULTS]
        self.rank: int = described["rank"]
        self.size: int = described["size"]
        self.backend: str = described["backend"]
        self.cuda = cuda if self.backend == "nccl" else None
        self.device = self.cuda.device if self.cuda else None
        self.callsites = bool(lib.raw.symmem_callsites())
        self.current = Current()
        self.streams = HostStreams(lib)
        self.groups: dict[str, Group] = {}
        self.domains: dict[tuple[int, ...], int] = {}
        self.attachments = Attachments(lib)
        self.closed = False
        self.forked = False
        self.asked: dict[str, Any] = {}
        self._sites: dict[str, int] = {}
        self._sides: dict[tuple[int, str], SideStream] = {}
        self._torch_ranks = torch_ranks
        self._process_groups: dict[int, tuple[Any, Group]] = {}
        everyone = tuple(range(self.size))
        self.domains[everyone] = 0
        self.world = Group(self, lib.number("symmem_world"), "world", everyone, 0)
        self.groups["world"] = self.world

    def require(self) -> None:
        """Raise where symmem cannot be used: closed, or in a child of fork."""
        if self.forked:
            raise errors.ForkedError(
                "symmem was opened before this process was forked; its memory and its threads "
                "stayed with the parent. Start workers with the spawn or forkserver method"
            )
        if self.closed:
            raise errors.ClosedError("symmem was closed: call symmem.init first")

    def router(self, pool: int) -> Router | None:
        """Find what diverts PyTorch's allocations to a pool; None on the host backend."""
        return self.cuda.router(pool) if self.cuda else None

    def diverted(self) -> bool:
        """Tell whether this thread is inside a scope on GPUs."""
        return self.cuda is not None and self.cuda.inside()

    def stream(self) -> int:
        """Return the current CUDA stream as a number; 0 on the host backend."""
        if self.cuda is None:
            return 0
        return int(self.cuda.torch.raw_stream(self.device))

    def before_registration(self, group: Group) -> None:
        """Make sure that nothing runs on communicators that are about to get windows."""
        self.attachments.settle(group.handle)

    def side_stream(self, group: Group, lane: str = "") -> SideStream:
        """Find the stream of a group's asynchronous collectives, or of its messages one way."""
        found = self._sides.get((group.handle, lane))
        if found is None:
            assert self.device is not None
            found = SideStream(self.library, group.handle, self.device)
            self._sides[group.handle, lane] = found
        return found

    def torch_rank(self, group: Group, rank: int) -> int:
        """Turn the number of a rank in a group into the one that torch.distributed gives it."""
        world = group.ranks[rank]
        return world if self._torch_ranks is None else self._torch_ranks[world]

    def root(self, group: Group, src: int | None, group_src: int | None) -> int:
        """Turn a root, by its number among all ranks or in the group, into one in the group."""
        if (src is None) == (group_src is None):
            raise errors.InvalidError("give src or group_src, one of them")
        if group_src is not None:
            if not 0 <= group_src < group.size:
                raise errors.InvalidError(f"group_src {group_src}: the group has {group.size}")
            return group_src
        world = src
        if self._torch_ranks is not None:
            # A number of torch.distributed's is none of ours, though one of ours may look like it.
            world = self._torch_ranks.index(src) if src in self._torch_ranks else -1
        if world not in group.ranks:
            raise errors.InvalidError(f"rank {src} is not in {group!r}")
        return group.ranks.index(world)

    def reserve(self, group: Group, nbytes: int, stream: int) -> None:
        """Make and register memory for a stream."""
        self.library.call("symmem_reserve_on", group.pool, nbytes, stream, group.handle)
        group.end_scope(stream)

    def site(self, text: str) -> int:
        """Number a call site."""
        found = self._sites.get(text)
        if found is None:
            data = text.encode()
            found = self.library.number("symmem_site", len(data), data)
            self._sites[text] = found
        return found

    def group(
        self, which: Any = None, *, domain: Group | None = None, name: str | None = None
    ) -> Group:
        """Find a group, and open it if that is its first use: see `symmem.group`."""
        self.require()
        if isinstance(which, Group | None):
            return which or self.world
        if isinstance(which, str):
            named = self.groups.get(which)
            return named or self._from_torch(process_group_of(which, sorted(self.groups)), domain)
        if known := self._process_groups.get(id(which)):
            return known[1]
        found = process_group_of(which, sorted(self.groups))
        if found is not None:
            return self._from_torch(found, domain)
        ranks = ranks_of(which)
        return self._open(name or f"ranks {','.join(map(str, ranks))}", ranks, domain)

    def count(self, name: str) -> int:
        """Count the ranks of a group by its name, without opening it."""
        self.require()
        if name in self.groups:
            return self.groups[name].size
        found = process_group_of(name, sorted(self.groups))
        return len(pytorch().distributed.get_process_group_ranks(found))

    def _from_torch(self, process_group: Any, domain: Group | None) -> Group:
        if self._torch_ranks is None:
            raise errors.InvalidError(
                f"{process_group!r} is no group of symmem's, and symmem was not opened from "
                "torch.distributed: call symmem.init after init_process_group"
            )
        dist = pytorch().distributed
        if process_group is dist.GroupMember.NON_GROUP_MEMBER:
            raise NotAMemberError("this rank is not in the process group")
        members = dist.get_process_group_ranks(process_group)
        missing = [r for r in members if r not in self._torch_ranks]
        if missing:
            raise errors.InvalidError(f"ranks {missing} of the process group are not in symmem's")
        ranks = tuple(self._torch_ranks.index(r) for r in members)
        if process_group is dist.group.WORLD and ranks == self.world.ranks:
            found = self.world
        else:
            found = self._open(f"torch {process_group.group_name} {ranks}", ranks, domain)
        # The process group is kept so that its id stays its own.
        self._process_groups[id(process_group)] = (process_group, found)
        return found

    def _open(self, name: str, ranks: tuple[int, ...], domain: Group | None) -> Group:
        if name in self.groups:
            return self.groups[name]
        if not ranks or not set(ranks) <= set(range(self.size)):
            raise errors.InvalidError(f"a group of ranks {ranks}: the world has {self.size}")
        if self.rank not in ranks:
            raise NotAMemberError(f"rank {self.rank} is not in the group {name!r}: {ranks}")
        handle = open_group(self.library, name, ranks)
        group = Group(self, handle, name, ranks, self._pool(handle, ranks, domain))
        self.groups[name] = group
        return group

    def _pool(self, handle: int, ranks: tuple[int, ...], domain: Group | None) -> int:
        """Find the pool that a group's scopes use: its domain's, or one of its own."""
        if domain is not None:
            if not set(ranks) <= set(domain.ranks):
                raise errors.InvalidError(f"the domain {domain!r} does not hold the ranks {ranks}")
            return domain.pool
        if ranks not in self.domains:
            self.domains[ranks] = self.library.number("symmem_pool_open", handle, 0, b"")
        return self.domains[ranks]

    def close(self, force: bool) -> None:
        """Close the library and everything that was made from it."""
        self.attachments.detach_all()
        if self.cuda is not None:
            waited = self._give_back(force)
            self.library.call("symmem_streams_settled", int(waited))
        self.library.call("symmem_close", int(force))
        self.retire()

    def _give_back(self, force: bool) -> bool:
        """Let PyTorch give back the segments that hold no tensors, and forget all pools of its.

        It reports whether the device was waited for. A forced close comes after faults, too, when a
        kernel may hang: then nothing else waits for the device, as PyTorch's empty_cache does.
        """
        assert self.cuda is not None
        cuda = self.cuda.torch.module.cuda
        waited = True
        if force:
            from symmem._cuda import FORCED_WAIT, ends_within

            device = self.cuda.device
            waited = ends_within(FORCED_WAIT, lambda: cuda.synchronize(device))
        else:
            cuda.synchronize()
        for router in self.cuda.routers.values():
            router.forget(lambda _: False)
            router.reset()
        if not force:
            cuda.empty_cache()
        return waited

    def retire(self) -> None:
        """Make everything that uses this rank raise."""
        self.closed = True
        for group in self.groups.values():
            group.retire()


_runtime: Runtime | None = None
_cuda: CudaPools | None = None


def current() -> Runtime:
    """Return the open rank, or raise `ClosedError`."""
    if _runtime is None:
        raise errors.ClosedError("symmem is not open: call symmem.init first")
    return _runtime


def is_open() -> bool:
    """Tell whether symmem is open in this process."""
    return _runtime is not None and not _runtime.closed and not _runtime.forked


def _in_child() -> None:
    if _runtime is not None:
        _runtime.forked = True
        for group in _runtime.groups.values():
            if group.router is not None:
                group.router.first = None


os.register_at_fork(after_in_child=_in_child)


def opened_alike(asked: dict[str, Any]) -> Runtime | None:
    """Return the open rank, or None; raise where it was opened with something else than is asked.

    What is not asked for agrees with anything, so that several libraries of a process share a rank.
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
    return runtime


def open_runtime(process_group: Any, device: Any, options: dict[str, Any]) -> Runtime:
    """Open this rank: see `symmem.init`."""
    global _runtime
    if _runtime is not None and not _runtime.closed:
        _runtime.require()
        raise errors.InvalidError("symmem is open already; symmem.finalize closes it")
    lib = library()
    lib.answers.from_main()
    found = pytorch() if process_group is not None or loaded() else None
    ranks: tuple[int, ...] | None = None
    if found is not None and (process_group is not None or found.initialized()):
        ranks = _meet(found, process_group, options)
    options.setdefault("timeout_ms", round(1000 * DEFAULT_TIMEOUT))
    ordinal = _ordinal(found, device, options)
    if ordinal is not None:
        options.setdefault("device", ordinal)
    if options.get("check") is None and _on_one_machine(options):
        options["check"] = "every"
    # The library freezes what the environment was when it was loaded.
    options["environment"] = {k: v for k, v in os.environ.items() if k.startswith(_VARIABLES)}
    text = json.dumps({k: v for k, v in options.items() if v is not None}).encode()
    lib.call("symmem_open", len(text), text)
    try:
        _runtime = Runtime(lib, _pools(found, lib, ordinal), ranks)
    except BaseException:
        lib.raw.symmem_close(1)
        raise
    if found is not None:
        from symmem import _ops

        _ops.register()
    return _runtime


def _meet(found: Torch, process_group: Any, options: dict[str, Any]) -> tuple[int, ...]:
    """Take ranks and a meeting place from torch.distributed."""
    dist = found.distributed
    group = process_group if process_group is not None else dist.group.WORLD
    ranks = tuple(dist.get_process_group_ranks(group))
    store = dist.distributed_c10d._get_process_group_store(group)
    if "timeout_ms" not in options:
        seconds = found.timeout_of(group) or DEFAULT_TIMEOUT
        options["timeout_ms"] = round(1000 * min(seconds, LONGEST_TIMEOUT))
    timeout = options["timeout_ms"] / 1000
    options.update(_rendezvous.options(store, dist.get_rank(group), len(ranks), timeout))
    return ranks


def _on_one_machine(options: dict[str, Any]) -> bool:
    """Tell whether all ranks are known to be on one machine."""
    size = options.get("size") or os.environ.get("WORLD_SIZE")
    local = options.get("local_size") or os.environ.get("LOCAL_WORLD_SIZE")
    return size is not None and str(size) == str(local)


def _ordinal(found: Torch | None, device: Any, options: dict[str, Any]) -> int | None:
    """Choose the CUDA device: PyTorch's current one unless the caller names one."""
    if options.get("backend") == "host" or found is None:
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
        from symmem._cuda import CudaPools

        found.module.cuda.init()
        _cuda = CudaPools(found, lib, ordinal)
    if _cuda.device != ordinal:
        raise errors.UnsupportedError(
            f"symmem was opened on device {_cuda.device} before; a process has one device"
        )
    return _cuda


def close_runtime(force: bool) -> None:
    """Close this rank: see `symmem.finalize`. Does nothing if symmem is not open."""
    global _runtime
    if _runtime is None or _runtime.closed:
        return
    _runtime.require()
    _runtime.close(force)
    _runtime = None
