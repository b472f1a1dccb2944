"""Chooses the PyTorch memory pool from which a thread allocates.

For each device, PyTorch has a list of pools to which allocations are diverted. Because a pool can
be in this list only once, two threads cannot divert to it at the same time. Programs need that,
for example for a scope around `backward()` on one thread and a scope in a custom backward function
on another. A domain therefore has several *lanes*. Each lane is a PyTorch MemPool over the domain's
symmem pool, and a thread takes the lowest lane that no other thread holds. The choice of the lane
depends only on which threads are inside a scope at that point of the program, so it is the same on
all ranks.

During the capture of a CUDA graph, allocations go only to lanes of the graph's private pool. Memory
that a replay writes is therefore not allocated again while the graph is alive, and graphs share
memory only if the caller made them share a private pool.

Nothing here calls the C library, so entering and leaving a scope costs only calls to PyTorch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

Key = tuple[int, int]
"""PyTorch's id of a graph's private pool, or EAGER outside captures."""

EAGER: Key = (-1, -1)


class Hooks(Protocol):
    """The functions of PyTorch that routing uses. Tests replace them."""

    capturing: Callable[[], Any]
    """Returns whether this thread's current stream is being captured."""

    def new_pool(self) -> Any:
        """Return a new MemPool over symmem's memory, with an attribute `id`."""

    def bind(self, pool_id: Key) -> Calls:
        """Return the calls that divert to a pool, with their arguments bound to make them fast."""

    def capture_key(self) -> Key:
        """Return the id of the private pool of the capture in progress."""

    def pause_graph(self, key: Key) -> None:
        """Stop diverting to a graph's private pool if it would take precedence over a lane."""

    def resume_graph(self, key: Key) -> None:
        """Divert to a graph's private pool again."""


class Calls(NamedTuple):
    """The calls that start and stop diverting allocations to one pool."""

    begin: Callable[[], Any]
    """Diverts this thread's allocations, and takes a reference to the pool."""
    begin_all: Callable[[], Any]
    """Does the same for all threads."""
    end: Callable[[], Any]
    """Stops diverting."""
    drop: Callable[[], Any]
    """Drops the reference."""


class Lane:
    """A PyTorch MemPool to which the open scopes of at most one thread divert.

    A lane is held from `acquire` to `release`, and free otherwise. A free lane has a token. Taking
    the token and returning it are atomic operations in Python, at a quarter of the cost of a lock.
    """

    __slots__ = (
        "all_threads",
        "begin",
        "begin_all",
        "drop",
        "end",
        "key",
        "owner",
        "pool",
        "pool_id",
        "token",
    )

    def __init__(self, owner: Router, key: Key):
        self.pool = owner.hooks.new_pool()
        self.pool_id: Key = self.pool.id
        self.begin, self.begin_all, self.end, self.drop = owner.hooks.bind(self.pool_id)
        self.key = key
        self.owner = owner
        self.all_threads = False
        self.token: list[None] = [None]

    def acquire(self) -> bool:
        """Take the lane if it is free, and return whether it was."""
        try:
            self.token.pop()
        except IndexError:
            return False
        return True

    def release(self) -> None:
        """Free the lane."""
        self.token.append(None)

    def divert(self) -> None:
        """Divert the thread that holds the lane, or all threads."""
        (self.begin_all if self.all_threads else self.begin)()

    def restore(self) -> None:
        """Undo `divert`."""
        self.end()
        self.drop()


class Nesting(threading.local):
    """The lanes to which this thread's open scopes divert, outermost first.

    None stands for ordinary memory. If a lane is on the stack twice in a row, leaving the inner
    scope changes nothing. All domains of a device share one nesting, because a thread diverts to
    only one pool at a time.
    """

    def __init__(self) -> None:
        self.stack: list[Lane | None] = []


class Router:
    """The lanes of one domain on one device. It is safe for concurrent use.

    Attributes:
        first: the lane for the fast path of eager scopes. It is None before the first scope and
            after the group was closed, so that every scope calls `enter`.
    """

    def __init__(self, hooks: Hooks, nesting: Nesting):
        self.hooks = hooks
        self.nesting = nesting
        self.capturing = hooks.capturing
        self.lanes: dict[Key, list[Lane]] = {}
        self.first: Lane | None = None
        self._lock = threading.Lock()

    def enter(self, all_threads: bool = False) -> None:
        """Divert this thread, or all threads, to the domain's memory."""
        stack = self.nesting.stack
        key = self.hooks.capture_key() if self.capturing() else EAGER
        held = stack[-1] if stack else None
        if (
            held is not None
            and held.owner is self
            and held.key == key
            and held.all_threads >= all_threads
        ):
            stack.append(held)
            return
        lane = self._take(key)
        lane.all_threads = all_threads
        if held is not None:
            held.restore()
        elif key is not EAGER:
            self.hooks.pause_graph(key)
        try:
            lane.divert()
        except BaseException:
            lane.release()
            self._resume(key, stack)
            raise
        stack.append(lane)

    def leave(self) -> None:
        """Undo `enter`, restoring the thread's previous diversion."""
        stack = self.nesting.stack
        lane = stack.pop()
        assert lane is not None
        if stack and stack[-1] is lane:
            return
        lane.restore()
        key = lane.key
        lane.release()
        self._resume(key, stack)

    def pause(self) -> None:
        """Make this thread allocate ordinary memory."""
        stack = self.nesting.stack
        held = stack[-1] if stack else None
        stack.append(None)
        if held is not None:
            held.restore()
            self._resume_graph(held.key)

    def unpause(self) -> None:
        """Undo `pause`."""
        stack = self.nesting.stack
        stack.pop()
        held = stack[-1] if stack else None
        if held is not None:
            if held.key is not EAGER:
                self.hooks.pause_graph(held.key)
            held.divert()

    def forget(self, alive: Callable[[Key], bool]) -> int:
        """Drop the lanes of graphs that are no longer alive, and return the number of lanes.

        Their memory returns to the domain's pool. All ranks must call this at the same points.
        """
        with self._lock:
            gone = sorted(k for k in self.lanes if k is not EAGER and not alive(k))
            return sum(len(self.lanes.pop(k)) for k in gone)

    def reset(self) -> None:
        """Drop the lanes of eager code that no open scope holds.

        Their segments without tensors return to the pool immediately, and the others when their
        last tensor is freed.
        """
        with self._lock:
            self.first = None
            kept = [lane for lane in self.lanes.pop(EAGER, []) if not lane.acquire()]
            if kept:
                self.lanes[EAGER] = kept

    def _resume(self, key: Key, stack: list[Lane | None]) -> None:
        """Divert to the lane on top of the stack again."""
        held = stack[-1] if stack else None
        if held is not None:
            held.divert()
        else:
            self._resume_graph(key)

    def _resume_graph(self, key: Key) -> None:
        if key is not EAGER:
            self.hooks.resume_graph(key)

    def _take(self, key: Key) -> Lane:
        """Take the lowest free lane of a key, creating one if none is free."""
        with self._lock:
            lanes = self.lanes.setdefault(key, [])
            lane = next((one for one in lanes if one.acquire()), None)
            if lane is None:
                lane = Lane(self, key)
                lane.acquire()
                lanes.append(lane)
            if key is EAGER:
                self.first = lanes[0]
            return lane
