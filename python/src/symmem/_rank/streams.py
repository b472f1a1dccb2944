"""The streams of the host backend, and the asynchronous work on them.

Each group has its own stream, so that groups, and threads that use different groups, do not wait
for each other. Each unfinished message also has its own stream, because messages are not ordered
with respect to collectives or messages of other ranks. A call waits for unfinished work on other
streams that uses the same memory, so the calls of one thread on that memory run in order.

Asynchronous work keeps a reference to its tensors until it completes, even if the `Work` is
dropped.
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
"""The library's maximum timeout, in milliseconds."""

Span = tuple[int, int]
"""The start address of a tensor, and the address just past its end."""


def span_of(tensor: Any) -> Span:
    """Return the span of a tensor, or of its storage if it is not contiguous."""
    if tensor.is_contiguous():
        start = tensor.data_ptr()
        return start, start + tensor.nbytes
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def overlap(some: Iterable[Span], others: Iterable[Span]) -> bool:
    """Return whether any span of the first collection overlaps any of the second."""
    return any(a < d and b > e for (a, b), (e, d) in itertools.product(some, others))


class HostEvent:
    """Marks the end of the work that was queued on a stream when the event was created."""

    __slots__ = ("_library", "handle")

    def __init__(self, library: Library, stream: int):
        self._library = library
        self.handle = library.number("symmem_event_record", stream)

    def done(self) -> bool:
        """Return whether the event has completed."""
        return bool(self._library.raw.symmem_event_done(self.handle))

    def wait(self) -> None:
        """Wait until the event completes, and raise the error of the work before it."""
        self._library.call("symmem_event_synchronize", self.handle)

    def wait_at_most(self, seconds: float) -> bool:
        """Wait for a limited time, and return whether the event has completed."""
        limit = max(1, min(round(1000 * seconds), LONGEST_WAIT))
        code = self._library.raw.symmem_event_wait(self.handle, limit)
        if code and not self.done() and code != Code.TIMEOUT:
            raise self._library.error(code)  # The wait was interrupted.
        return not code or self.done()

    def __del__(self) -> None:
        # The library ignores the call if it is closed, and in a forked child.
        if hasattr(self, "handle"):
            self._library.raw.symmem_event_close(self.handle)


class Queued:
    """Work that was queued on a stream, with its tensors.

    Attributes:
        order: the number of the work on its stream.
        event: completes when the work does.
        error: the error of the completed work, or None.
        reported: whether the caller knows the error.
    """

    __slots__ = (
        "_completed",
        "_source",
        "_spans",
        "_tensors",
        "error",
        "event",
        "order",
        "reported",
    )

    def __init__(self, event: HostEvent, tensors: list[Any], source: Any):
        self.event = event
        self.order = 0
        self.error: BaseException | None = None
        self.reported = False
        self._tensors = tensors
        # The library writes the sender of a message here.
        self._source = source
        self._spans: list[Span] | None = None
        self._completed = False

    def spans(self) -> list[Span]:
        """Return the spans of the tensors."""
        if self._spans is None:
            self._spans = [span_of(t) for t in self._tensors]
        return self._spans

    def complete(self) -> None:
        """Wait until the work completes, and store its error."""
        if self._completed:
            return
        try:
            self.event.wait()
        except errors.SymmemError as e:
            if not self.event.done():
                raise  # The wait was interrupted.
            # A closed library is no failure, because symmem.finalize waits for all work.
            if e.code not in (Code.NOT_OPEN, Code.CLOSED):
                self.error = e
        self._completed = True

    def is_completed(self) -> bool:
        """Return whether the work has completed."""
        if not self._completed and self.event.done():
            self.complete()
        return self._completed

    def is_resolved(self) -> bool:
        """Return whether the work has succeeded, or failed with an error that its caller knows.

        Until then, calls on the same memory wait for the work and fail if it failed.
        """
        return self.is_completed() and (self.reported or self.error is None)


class HostStream:
    """A stream, and the work on it that may be unfinished.

    Attributes:
        number: the stream's number in the C library, which creates a stream for any new number.
        home: the free streams, to which this one returns when its work is done, or None for a main
            stream.
        works: asynchronous work that may be unfinished, oldest first.
        queued: the number of works queued so far.
        kept: completed work with symmetric tensors, which all ranks must release at the same point.
        watcher: runs callbacks when work on the stream completes.
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
    """The streams of a group. They are safe for concurrent use.

    Attributes:
        main: the stream of collectives. For the world of `symmem.init` it is the default stream.
    """

    def __init__(self, group: int, default: bool):
        self.main = HostStream(0 if default else group)
        self._numbers = itertools.count(1 << 62 | group << 16)
        self._free: deque[HostStream] = deque()

    def take(self, streams: HostStreams) -> HostStream:
        """Return a free stream, for one message."""
        if not self._free:
            streams.prune()
        try:
            return self._free.popleft()
        except IndexError:
            return HostStream(next(self._numbers), self._free)

    def owns(self, stream: HostStream) -> bool:
        """Return whether a stream belongs to the group."""
        return stream is self.main or stream.home is self._free

    def all(self) -> list[HostStream]:
        """Return the main stream and the free streams. All others are busy."""
        return [self.main, *self._free]


class HostStreams:
    """The streams of all groups. They are safe for concurrent use.

    Attributes:
        busy: the streams whose work may be unfinished or still holds tensors.
    """

    def __init__(self, library: Library):
        self._library = library
        self._lock = threading.Lock()
        self.busy: set[HostStream] = set()
        self._abandoned: list[Queued] = []
        # Work may still run while the interpreter shuts down, so its tensors must never be freed.
        c.pythonapi.Py_IncRef(c.py_object(self.busy))
        c.pythonapi.Py_IncRef(c.py_object(self._abandoned))

    def add(self, stream: HostStream, tensors: list[Any], source: Any = None) -> Queued:
        """Keep the tensors of work that was just queued until it completes."""
        work = Queued(HostEvent(self._library, stream.number), tensors, source)
        released = self._prune(stream) if stream.works else None
        with self._lock:
            stream.queued += 1
            work.order = stream.queued
            stream.works.append(work)
            self.busy.add(stream)
        del released  # Outside the lock, because this may free tensors.
        return work

    def order(self, stream: HostStream, spans: list[Span]) -> None:
        """Make a stream wait for unfinished work on other streams that uses the same memory."""
        for other in list(self.busy):
            if other is stream:
                continue
            last = self._last(other, spans)
            if last is not None and not last.is_resolved():
                self._library.call("symmem_stream_wait", stream.number, last.event.handle)

    def wait_for(self, spans: list[Span]) -> None:
        """Block until no unfinished work on any stream uses the given memory."""
        for stream in list(self.busy):
            last = self._last(stream, spans)
            if last is not None:
                last.event.wait()

    def release_up_to(self, stream: HostStream, until: int) -> None:
        """Release the tensors of a stream's work up to and including the given order.

        The caller has waited for that work. All ranks must call this at the same points.
        """
        if stream not in self.busy:
            return
        # Kept work was queued before work that may be unfinished, so this follows the queue order.
        released: list[Queued] = []
        with self._lock:
            if stream.kept:
                released = [w for w in stream.kept if w.order <= until]
                stream.kept = [w for w in stream.kept if w.order > until]
            works = stream.works
            while works and works[0].order <= until:
                released.append(works.popleft())
            self._drop_idle(stream)
        del released  # Outside the lock, because this may free tensors.

    def synchronize(self, stream: HostStream) -> None:
        """Wait for all work on a stream, and raise the first error."""
        until = stream.queued
        self._library.call("symmem_stream_synchronize", stream.number)
        self.release_up_to(stream, until)

    def forget(self, lanes: Lanes) -> None:
        """Destroy the main and free streams of a closed group, after waiting for their work."""
        for stream in lanes.all():
            until = stream.queued
            self._library.call("symmem_stream_forget", stream.number)
            self.release_up_to(stream, until)

    def abandon(self, lanes: Lanes) -> None:
        """Never free the tensors of unfinished work, which may outlive a forced close."""
        for stream in [s for s in list(self.busy) if lanes.owns(s)]:
            self._abandoned += [w for w in list(stream.works) if not w.event.done()]

    def drop(self, lanes: Lanes) -> None:
        """Release the tensors of a group whose world was closed, except those abandoned."""
        released: list[Queued] = []
        with self._lock:
            for stream in [s for s in self.busy if lanes.owns(s)]:
                released += [*stream.works, *stream.kept]
                stream.works.clear()
                stream.kept = []
                self._drop_idle(stream)
        del released  # Outside the lock, because this may free tensors.

    def _last(self, stream: HostStream, spans: list[Span]) -> Queued | None:
        """Return a stream's latest work that uses the given memory, or None."""
        with self._lock:
            works = list(stream.works)
        return next((w for w in reversed(works) if overlap(w.spans(), spans)), None)

    def prune(self) -> None:
        """Release completed work, except work with symmetric tensors."""
        for stream in list(self.busy):
            self._prune(stream)

    def _prune(self, stream: HostStream) -> list[Queued]:
        """Remove completed work from a stream and return it, except work with symmetric tensors.

        All ranks must free symmetric memory at the same point, but work completes at different
        times on each rank.
        """
        released = []
        with self._lock:
            for work in _done(stream.works):
                if any(self._library.in_pool(start) for start, _ in work.spans()):
                    stream.kept.append(work)
                else:
                    released.append(work)
            self._drop_idle(stream)
        return released

    def _drop_idle(self, stream: HostStream) -> None:
        if stream in self.busy and not stream.works and not stream.kept:
            self.busy.discard(stream)
            give_back(stream)


def give_back(stream: HostStream) -> None:
    """Add a stream whose work is done to the free streams, unless it is a main stream."""
    if stream.home is not None:
        stream.home.append(stream)


def _done(works: deque[Queued]) -> Iterator[Queued]:
    """Pop completed work from the front, up to any failed work whose error is unreported."""
    while works and works[0].is_resolved():
        yield works.popleft()


class Watcher:
    """Runs callbacks when work on a stream completes, on a thread that exits when it is idle."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[tuple[Queued, Callable[[], Any]]] = deque()
        self._running = False

    def watch(self, work: Queued, then: Callable[[], Any]) -> None:
        """Call `then`, which must not raise, on another thread once work has completed."""
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
                # Retry, because a filter that turns a warning into an error interrupts the wait.
                with suppress(Exception):
                    work.complete()
            then()
