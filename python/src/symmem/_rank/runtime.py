"""This process as a rank of an open world."""

from __future__ import annotations

import sys
import threading
from functools import cache
from types import FrameType
from typing import Any

from symmem import errors
from symmem._c.constants import Word
from symmem._c.library import Library
from symmem._c.sites import program, text, wanted
from symmem._rank.streams import HostStreams
from symmem._rank.work import SideStream
from symmem._torch.attach import Attachments
from symmem._torch.cuda import FORCED_WAIT, CudaPools, completes_within
from symmem._torch.routing import Router

ORDINARY = -1
"""Stands for ordinary memory where a pool number is expected."""


class Current(threading.local):
    """The open scopes of this thread.

    Attributes:
        pools: the runtime and pool number of each scope on the host backend, innermost last. The
            number is ORDINARY for a disabled scope.
        sites: the call sites that the scopes restore when they end, on either backend.
        factories: intercepts PyTorch's factory functions on the host backend. It is None if
            PyTorch was not loaded when the outermost scope began.
    """

    def __init__(self) -> None:
        self.pools: list[tuple[Runtime, int]] = []
        self.sites: list[int] = []
        self.factories: Any = None


CURRENT = Current()
"""The open scopes of all worlds, because scopes of different worlds can be nested."""


@cache
def _streams(library: Library) -> HostStreams:
    """Return the host backend's streams, which all worlds share because calls may share memory."""
    return HostStreams(library)


class Runtime:
    """This process as a rank of one open world.

    Attributes:
        library: the loaded library.
        world: the handle of the world.
        main: whether `symmem.init` opened the world, rather than `symmem.open_world`.
        rank, size: the rank of this process in the world, and the number of ranks.
        backend: "nccl" or "host".
        cuda: PyTorch's side of the pools, or None on the host backend.
        device: the ordinal of the CUDA device, or None on the host backend.
        faults: the number of failed groups when the fault counter was last checked.
        streams: the host backend's streams of all worlds.
        callsites: the number of stack frames recorded for each call; 0 if none.
        current: the open scopes of the calling thread.
        attachments: PyTorch's communicators for which windows are registered as well.
        torch_ranks: the global ranks of the world's ranks, or None if symmem was not initialized
            from torch.distributed.
        asked: the arguments of `symmem.init` or `symmem.open_world`.
        sites: the numbers of call sites by file and line; see `site`.
        closed, forked: whether the world was closed, and whether this is a forked child.
    """

    def __init__(
        self,
        lib: Library,
        world: int,
        main: bool,
        cuda: CudaPools | None,
        torch_ranks: tuple[int, ...] | None,
        asked: dict[str, Any],
    ):
        described = lib.json("symmem_world_describe", world)
        self.library = lib
        self.world = world
        self.main = main
        self.faults = lib.words[Word.FAULTS]
        self.rank: int = described["rank"]
        self.size: int = described["size"]
        self.backend: str = described["backend"]
        self.cuda = cuda if self.backend == "nccl" else None
        self.device = self.cuda.device if self.cuda else None
        self.callsites = wanted(asked.get("callsites")) if lib.raw.symmem_callsites() else 0
        self.current = CURRENT
        self.streams = _streams(lib)
        self.attachments = Attachments(lib)
        self.torch_ranks = torch_ranks
        self.asked = asked
        self.closed = False
        self.forked = False
        self.sites: dict[tuple[tuple[str, int], ...], int] = {}
        self._sides: dict[tuple[int, str], SideStream] = {}
        self._routers: dict[int, Router] = {}

    def require(self) -> None:
        """Raise `ClosedError` if the world is closed, and `ForkedError` in a forked child."""
        if self.forked:
            raise errors.ForkedError(
                "symmem was initialized before this process was forked, and only the parent has "
                "its memory and threads; start workers with the spawn or forkserver method"
            )
        if self.closed:
            opener = "symmem.init" if self.main else "symmem.open_world"
            raise errors.ClosedError(f"symmem was closed; call {opener} first")

    def router(self, pool: int) -> Router | None:
        """Return the router of PyTorch's allocations to a pool, or None on the host backend."""
        if self.cuda is None:
            return None
        found = self._routers[pool] = self.cuda.router(pool)
        return found

    def diverted(self) -> bool:
        """Return whether this thread is inside a scope on GPUs."""
        return self.cuda is not None and self.cuda.inside()

    def stream(self) -> int:
        """Return the current CUDA stream as a number; 0 on the host backend."""
        if self.cuda is None:
            return 0
        return int(self.cuda.torch.raw_stream(self.device))

    def side_stream(self, group: int, lane: str = "") -> SideStream:
        """Return the stream of a group's asynchronous collectives or of its messages.

        Args:
            group: the handle of the group.
            lane: the direction of the messages; empty for collectives.
        """
        found = self._sides.get((group, lane))
        if found is None:
            assert self.device is not None
            found = self._sides[group, lane] = SideStream(self.library, group, self.device)
        return found

    def set_site(self) -> int:
        """Make the caller's line this thread's call site, and return the previous site."""
        return int(self.library.raw.symmem_set_site(self.site(sys._getframe(1))))

    def site(self, frame: FrameType) -> int:
        """Return the number of the call site of a frame: the program's lines that led to it."""
        frames = program(frame, max(1, self.callsites))
        lines = tuple((f.f_code.co_filename, f.f_lineno) for f in frames)
        found = self.sites.get(lines)
        if found is None:
            data = text(frames).encode()
            found = self.library.number("symmem_site", len(data), data)
            self.sites[lines] = found
        return found

    def close(self, force: bool) -> None:
        """Close the world. Later calls that use it raise `ClosedError`."""
        self.attachments.detach_all()
        if self.cuda is not None:
            waited = self._give_back(force)
            self.library.call("symmem_streams_idle", int(waited))
        try:
            if self.main:
                self.library.call("symmem_close", int(force))
            else:
                self.library.call("symmem_world_close", self.world, int(force))
        finally:
            if self.cuda is not None:
                # Other worlds continue to use the streams. Without other worlds, the call has no
                # effect.
                self.library.raw.symmem_streams_idle(0)
        self.closed = True

    def _give_back(self, force: bool) -> bool:
        """Make PyTorch free this world's segments that contain no tensors.

        Return whether the device is idle. A forced close does not call PyTorch's empty_cache,
        because it waits for the device, and after a fault a kernel may hang.
        """
        assert self.cuda is not None
        cuda = self.cuda.torch.module.cuda
        waited = True
        if force:
            device = self.cuda.device
            waited = completes_within(FORCED_WAIT, lambda: cuda.synchronize(device))
        else:
            cuda.synchronize()
        for router in self._routers.values():
            router.forget(lambda _: False)
            router.reset()
        if not force:
            cuda.empty_cache()
        return waited
