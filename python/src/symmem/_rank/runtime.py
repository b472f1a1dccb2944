"""A rank of an open world, as its groups, scopes and calls use it."""

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
from symmem._torch.cuda import FORCED_WAIT, CudaPools, ends_within
from symmem._torch.routing import Router

ORDINARY = -1
"""In place of a pool's number: memory that is not symmetric."""


class Current(threading.local):
    """The pools that this thread's open scopes on the host backend allocate from, innermost last.

    `pools` are ranks and numbers of pools, ORDINARY for a disabled scope. `sites` are the call
    sites that scopes will restore, on any backend. `factories` intercepts what PyTorch makes
    meanwhile; None if PyTorch was not loaded when the outermost scope began.
    """

    def __init__(self) -> None:
        self.pools: list[tuple[Runtime, int]] = []
        self.sites: list[int] = []
        self.factories: Any = None


CURRENT = Current()
"""That of all worlds: scopes of several worlds can be nested."""


@cache
def _streams(library: Library) -> HostStreams:
    """Return the host backend's streams of all worlds, whose calls may share memory."""
    return HostStreams(library)


class Runtime:
    """This process as a rank of one open world.

    Attributes:
        library: the loaded library.
        world: the handle of the world.
        main: whether `symmem.init` opened it, not `symmem.open_world`.
        rank, size: this rank and the number of ranks, in the world of symmem.
        backend: "nccl" or "host".
        cuda: PyTorch's side of the pools, None on the host backend.
        device: the ordinal of the CUDA device, None on the host backend.
        faults: the shared word that counts groups that have failed, as it was before.
        streams: the host backend's, of all worlds.
        callsites: how many lines of Python are noted with what they do, 0 if none.
        current: what this thread's scopes allocate from.
        attachments: communicators of PyTorch's that get windows, too.
        torch_ranks: the numbers that torch.distributed gives the ranks of the world, None where
            symmem was not opened from it.
        asked: what `symmem.init` or `symmem.open_world` was given.
        sites: the numbers of call sites, by files and lines: see `site`.
        closed, forked: whether the rank was closed, and whether this is a child of fork.
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
        """Raise if the world is closed, or in a child of fork."""
        if self.forked:
            raise errors.ForkedError(
                "symmem was opened before this process was forked, and only the parent has its "
                "memory and threads. Start workers with the spawn or forkserver method"
            )
        if self.closed:
            opener = "symmem.init" if self.main else "symmem.open_world"
            raise errors.ClosedError(f"symmem was closed: call {opener} first")

    def router(self, pool: int) -> Router | None:
        """Find what diverts PyTorch's allocations to a pool; None on the host backend."""
        if self.cuda is None:
            return None
        found = self._routers[pool] = self.cuda.router(pool)
        return found

    def diverted(self) -> bool:
        """Report whether this thread is inside a scope on GPUs."""
        return self.cuda is not None and self.cuda.inside()

    def stream(self) -> int:
        """Return the current CUDA stream as a number; 0 on the host backend."""
        if self.cuda is None:
            return 0
        return int(self.cuda.torch.raw_stream(self.device))

    def side_stream(self, group: int, lane: str = "") -> SideStream:
        """Find the stream of a group's asynchronous collectives, or of its messages one way.

        The group is given by its handle.
        """
        found = self._sides.get((group, lane))
        if found is None:
            assert self.device is not None
            found = self._sides[group, lane] = SideStream(self.library, group, self.device)
        return found

    def set_site(self) -> int:
        """Make the caller's line the site of what this thread does, and return the one before."""
        return int(self.library.raw.symmem_set_site(self.site(sys._getframe(1))))

    def site(self, frame: FrameType) -> int:
        """Number the line of the program that leads to a frame, with its callers if wanted."""
        frames = program(frame, max(1, self.callsites))
        lines = tuple((f.f_code.co_filename, f.f_lineno) for f in frames)
        found = self.sites.get(lines)
        if found is None:
            data = text(frames).encode()
            found = self.library.number("symmem_site", len(data), data)
            self.sites[lines] = found
        return found

    def close(self, force: bool) -> None:
        """Close the world. Later calls that use it raise."""
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
                # Other worlds continue. Without any, the call has no effect.
                self.library.raw.symmem_streams_idle(0)
        self.closed = True

    def _give_back(self, force: bool) -> bool:
        """Make PyTorch free the segments of this world that contain no tensors.

        It reports whether it has waited for the device. After a fault a kernel may hang, so a
        forced close does not call PyTorch's empty_cache, which waits for the device.
        """
        assert self.cuda is not None
        cuda = self.cuda.torch.module.cuda
        waited = True
        if force:
            device = self.cuda.device
            waited = ends_within(FORCED_WAIT, lambda: cuda.synchronize(device))
        else:
            cuda.synchronize()
        for router in self._routers.values():
            router.forget(lambda _: False)
            router.reset()
        if not force:
            cuda.empty_cache()
        return waited
