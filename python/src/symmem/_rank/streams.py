"""The streams of the host backend, and the asynchronous work on them.

Each group has a separate stream, so that groups, and threads that use different groups, do not
wait for each other. Each unfinished message has a stream, because messages are not ordered with
collectives or with messages of other ranks. A call waits for unfinished work of other streams on
the same memory. So the calls of one thread on the same memory keep their order.

Asynchronous work keeps a reference to its tensors until it is done, even if the `Work` is dropped.
"""

from __future__ import annotations

import ctypes as c
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from symmem import errors
from symmem._c.constants import Code
from symmem._c.library import Library

LONGEST_WAIT = 24 * 60 * 60 * 1000
"""The longest timeout of the library, in milliseconds: a day."""

Span = tuple[int, int]
"""The first address of a tensor, and the address after its last."""


def span_of(tensor: Any) -> Span:
    """Find the addresses of a tensor, or of its storage if it is not contiguous."""
    if tensor.is_contiguous():
        start = tensor.data_ptr()
        return start, start + tensor.nbytes
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def overlap(some: Iterable[Span], others: Iterable[Span]) -> bool:
    """Report whether any of some spans overlaps any of others."""
    return any(a < d and b > e for (a, b), (e, d) in itertools.product(some, others))


class HostEvent:
    """The point after everything that was queued on a stream when the event was made."""

    __slots__ = ("_library", "handle")

    def __init__(self, library: Library, stream: int):
        self._library = library
        self.handle = library.number("symmem_event_record", stream)

    def done(self) -> bool:
        """Report whether the point has been reached."""
        return bool(self._library.raw.symmem_event_done(self.handle))

    def wait(self) -> None:
        """Wait until the point has been reached, and raise the error of the work before it."""
        self._library.call("symmem_event_synchronize", self.handle)

    def wait_at_most(self, seconds: float) -> bool:
        """Wait for a time at most, and report whether the point has been reached by then."""
        limit = max(1, min(round(1000 * seconds), LONGEST_WAIT))
        code = self._library.raw.symmem_event_wait(self.handle, limit)
        if code and not self.done() and code != Code.TIMEOUT:
            raise self._library.error(code)  # The wait was ended from outside.
        return not code or self.done()

    def __del__(self) -> None:
        # The library ignores the call when it is closed, and in a child of fork.
        if hasattr(self, "handle"):
            self._library.raw.symmem_event_close(self.handle)


class Queued:
    """Work that was queued on a stream, with its tensors.

    States: running; ended, once a call has found that its event is reached.

    Attributes:
        order: its number on its stream.
        event: is reached when the work has ended.
        error: what it has failed with, once it has ended.
        reported: the caller knows the error.
    """

    __slots__ = ("_ended", "_source", "_spans", "_tensors", "error", "event", "order", "reported")

    def __init__(self, event: HostEvent, tensors: list[Any], source: Any):
        self.event = event
        self.order = 0
        self.error: BaseException | None = None
        self.reported = False
        self._tensors = tensors
        # The library writes the sender of a message here.
        self._source = source
        self._spans: list[Span] | None = None
        self._ended = False

    def spans(self) -> list[Span]:
        """Find the addresses of the tensors."""
        if self._spans is None:
            self._spans = [span_of(t) for t in self._tensors]
        return self._spans

    def end(self) -> None:
        """Wait until the work has ended, and note its error."""
        if self._ended:
            return
        try:
            self.event.wait()
        except errors.SymmemError as e:
            if not self.event.done():
                raise  # The wait was ended from outside.
            # symmem.finalize waits for the work of all streams.
            if e.code not in (Code.NOT_OPEN, Code.CLOSED):
                self.error = e
        self._ended = True

    def is_completed(self) -> bool:
        """Report whether the work has ended."""
        if not self._ended and self.event.done():
            self.end()
        return self._ended

    def is_resolved(self) -> bool:
        """Report whether the work has ended well, or its caller knows the error.

        Until then calls on the same memory wait for it, and fail with its error.
        """
        return self.is_completed() and (self.reported or self.error is None)


class HostStream:
    """A stream, and its work that may be unfinished.

    Attributes:
        number: the stream's number in the C library, where any number names one.
        home: the free streams, to which it returns when its work is done; None for a main stream.
        works: asynchronous work that may be unfinished, oldest first.
        queued: how much work there was so far.
        kept: work that is done, and whose symmetric tensors stay until ranks do the same thing.
        watcher: calls back when work of the stream is done.
    """

    __slots__ = ("home", "kept", "number", "queued", "watcher", "works")

    def __init__(self, number: int, home: deque[HostStream] | None = None):
        self.number = number
        self.home = home
        self.works: deque[Queued] = deque()
        self.kept: list[Queued] = []
        self.queued = 0
        self.watcher = Watcher()


class Lanes:
    """The streams of a group. It is safe for concurrent use.

    Attributes:
        main: of collectives. That of the world of `symmem.init` is the default stream.
    """

    def __init__(self, group: int, default: bool):
        self.main = HostStream(0 if default else group)
        self._numbers = itertools.count(1 << 62 | group << 16)
        self._free: deque[HostStream] = deque()

    def take(self, streams: HostStreams) -> HostStream:
        """Take a stream for one message: nothing else is on it."""
        if not self._free:
            streams.prune()
        try:
            return self._free.popleft()
        except IndexError:
            return HostStream(next(self._numbers), self._free)

    def owns(self, stream: HostStream) -> bool:
        """Report whether a stream is one of these."""
        return stream is self.main or stream.home is self._free

    def all(self) -> list[HostStream]:
        """List the streams that can be idle; those that are not are busy."""
        return [self.main, *self._free]


class HostStreams:
    """The streams of all groups. It is safe for concurrent use.

    Attributes:
        busy: the streams with work that may be unfinished, or that keeps tensors.
    """

    def __init__(self, library: Library):
        self._library = library
        self._lock = threading.Lock()
        self.busy: set[HostStream] = set()
        self._abandoned: list[Queued] = []
        # Work may still run while the interpreter ends, so its tensors are never freed then.
        c.pythonapi.Py_IncRef(c.py_object(self.busy))
        c.pythonapi.Py_IncRef(c.py_object(self._abandoned))

    def add(self, stream: HostStream, tensors: list[Any], source: Any = None) -> Queued:
        """Keep the tensors of work that was just queued until it is done."""
        work = Queued(HostEvent(self._library, stream.number), tensors, source)
        released = self._prune(stream) if stream.works else None
        with self._lock:
            stream.queued += 1
            work.order = stream.queued
            stream.works.append(work)
            self.busy.add(stream)
        del released  # Outside of the lock: this may free tensors.
        return work

    def order(self, stream: HostStream, spans: list[Span]) -> None:
        """Let a stream wait for unfinished work of other streams on the same memory."""
        for other in list(self.busy):
            if other is stream:
                continue
            last = self._last(other, spans)
            if last is not None and not last.is_resolved():
                self._library.call("symmem_stream_wait", stream.number, last.event.handle)

    def wait_for(self, spans: list[Span]) -> None:
        """Wait here for unfinished work of any stream on the same memory."""
        for stream in list(self.busy):
            last = self._last(stream, spans)
            if last is not None:
                last.event.wait()

    def covered(self, stream: HostStream, until: int) -> None:
        """Release the tensors of work that was waited for: all up to one, by its order.

        Ranks call it at the same points.
        """
        if stream not in self.busy:
            return
        # In the order of the calls: what was kept came before what may be under way.
        gone: list[Queued] = []
        with self._lock:
            if stream.kept:
                gone = [w for w in stream.kept if w.order <= until]
                stream.kept = [w for w in stream.kept if w.order > until]
            works = stream.works
            while works and works[0].order <= until:
                gone.append(works.popleft())
            self._drop_idle(stream)
        del gone  # Outside of the lock: this may free tensors.

    def synchronize(self, stream: HostStream) -> None:
        """Wait for everything on a stream, and raise the first error of it."""
        until = stream.queued
        self._library.call("symmem_stream_synchronize", stream.number)
        self.covered(stream, until)

    def forget(self, lanes: Lanes) -> None:
        """End the streams of a group that was closed: work that is not done is waited for."""
        for stream in lanes.all():
            until = stream.queued
            self._library.call("symmem_stream_forget", stream.number)
            self.covered(stream, until)

    def abandon(self, lanes: Lanes) -> None:
        """Never free the tensors of unfinished work: a forced close may leave it running."""
        for stream in [s for s in list(self.busy) if lanes.owns(s)]:
            self._abandoned += [w for w in list(stream.works) if not w.event.done()]

    def drop(self, lanes: Lanes) -> None:
        """Release the tensors of a group whose world was closed, which ends other work."""
        gone: list[Queued] = []
        with self._lock:
            for stream in [s for s in self.busy if lanes.owns(s)]:
                gone += [*stream.works, *stream.kept]
                stream.works.clear()
                stream.kept = []
                self._drop_idle(stream)
        del gone  # Outside of the lock: this may free tensors.

    def _last(self, stream: HostStream, spans: list[Span]) -> Queued | None:
        """Find the latest work on some memory."""
        with self._lock:
            works = list(stream.works)
        return next((w for w in reversed(works) if overlap(w.spans(), spans)), None)

    def prune(self) -> None:
        """Release all work that is done."""
        for stream in list(self.busy):
            self._prune(stream)

    def _prune(self, stream: HostStream) -> list[Queued]:
        """Release finished work and return it. Work with symmetric tensors stays.

        All ranks must free symmetric memory at the same point, and work is done at different times.
        """
        gone = []
        with self._lock:
            for work in _done(stream.works):
                if any(self._library.in_pool(start) for start, _ in work.spans()):
                    stream.kept.append(work)
                else:
                    gone.append(work)
            self._drop_idle(stream)
        return gone

    def _drop_idle(self, stream: HostStream) -> None:
        if stream in self.busy and not stream.works and not stream.kept:
            self.busy.discard(stream)
            give_back(stream)


def give_back(stream: HostStream) -> None:
    """Add a stream whose work is done to the free streams, unless it is a main stream."""
    if stream.home is not None:
        stream.home.append(stream)


def _done(works: deque[Queued]) -> Iterator[Queued]:
    """Take finished work from the front. Failed work stays until its error was reported."""
    while works and works[0].is_resolved():
        yield works.popleft()


class Watcher:
    """A thread that calls back when work of a stream is done. It lives while there is any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[tuple[Queued, Callable[[], Any]]] = deque()
        self._running = False

    def watch(self, work: Queued, then: Callable[[], Any]) -> None:
        """Call `then`, which raises nothing, on another thread when work is done or has failed."""
        with self._lock:
            self._queue.append((work, then))
            if self._running:
                return
            self._running = True
        threading.Thread(target=self._run, name="symmem watcher", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._running = False
                    return
                work, then = self._queue.popleft()
            while not work.is_completed():
                # A filter may make an error of a warning, which ends no wait of this thread.
                with suppress(Exception):
                    work.end()
            then()
