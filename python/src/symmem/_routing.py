"""Which pool of PyTorch's a thread allocates from.

PyTorch keeps, for each device, a list of pools that divert allocations. A pool may stand in it only
once, whichever thread put it there, so two threads cannot divert to one pool at the same time. They
do in practice: a scope around `backward()` on one thread, a scope inside a custom backward function
on another. So a domain has several *lanes*, each a MemPool of PyTorch's over the same pool of ours,
and a thread takes the lowest lane that no other thread holds. Which one that is depends only on who
is inside a scope at that point of the program, which ranks share.

While a CUDA graph is captured allocations go to lanes that belong to the graph's own private pool
and serve nobody else. So what a graph writes when it is replayed is never handed to anyone while
the graph lives, and graphs share memory exactly where the caller made them share PyTorch's.

Nothing here calls the C library: entering and leaving a scope costs calls into PyTorch alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

Key = tuple[int, int]
"""The private pool of a graph, by PyTorch's id, or EAGER."""

EAGER: Key = (-1, -1)


class Hooks(Protocol):
    """What routing needs of PyTorch. Tests give their own."""

    capturing: Callable[[], bool]
    """Tells whether this thread's current stream is being captured."""

    def new_pool(self) -> Any:
        """Make a MemPool over symmem's memory; it has an attribute `id`."""

    def begin(self, pool_id: Key) -> None:
        """Divert this thread's allocations to a pool."""

    def begin_all(self, pool_id: Key) -> None:
        """Divert the allocations of all threads to a pool."""

    def end(self, pool_id: Key) -> None:
        """Stop diverting to a pool, and drop the reference that beginning took."""

    def capture_key(self) -> Key:
        """Name the private pool of the capture that is under way."""

    def pause_graph(self, key: Key) -> None:
        """Stop diverting to a graph's private pool, where it would win over ours."""

    def resume_graph(self, key: Key) -> None:
        """Divert to a graph's private pool again."""


class Lane:
    """One MemPool of PyTorch's, which the open scopes of at most one thread divert to.

    States: free; held, from `acquire` to `release`.
    """

    __slots__ = ("_lock", "acquire", "all_threads", "key", "owner", "pool", "pool_id", "release")

    def __init__(self, pool: Any, key: Key, owner: Router):
        self.pool = pool
        self.pool_id: Key = pool.id
        self.key = key
        self.owner = owner
        self.all_threads = False
        self._lock = threading.Lock()
        self.acquire = self._lock.acquire
        self.release = self._lock.release


class Nesting(threading.local):
    """What this thread's open scopes divert to, outermost first; None is ordinary memory.

    All domains of a device share one, since a thread diverts to one pool at a time.
    """

    def __init__(self) -> None:
        self.stack: list[Lane | None] = []


class Router:
    """The lanes of one domain on one device. It is safe for concurrent use."""

    def __init__(self, hooks: Hooks, nesting: Nesting):
        self.hooks = hooks
        self.nesting = nesting
        self.lanes: dict[Key, list[Lane]] = {}
        self._capturing = hooks.capturing
        self._begin = hooks.begin
        self._end = hooks.end
        self._lock = threading.Lock()
        self._first: Lane | None = None

    def enter(self, all_threads: bool = False) -> Lane | None:
        """Divert this thread to the domain's memory, and return what `leave` wants.

        None means that the thread is diverted there already: there is nothing to leave.
        """
        stack = self.nesting.stack
        lane = self._first
        if (
            lane is None
            or stack
            or all_threads
            or self._capturing()
            or not lane.acquire(blocking=False)
        ):
            return self._enter_slowly(stack, all_threads)
        try:
            self._begin(lane.pool_id)
        except BaseException:
            lane.release()
            raise
        stack.append(lane)
        return lane

    def leave(self, lane: Lane) -> None:
        """Undo `enter`: the thread is diverted to what it was diverted to before."""
        stack = self.nesting.stack
        stack.pop()
        self._end(lane.pool_id)
        lane.release()
        if stack or lane.key is not EAGER:
            self._resume(lane.key, stack)

    def pause(self) -> bool:
        """Let this thread allocate ordinary memory, and tell whether `unpause` has to follow."""
        stack = self.nesting.stack
        held = stack[-1] if stack else None
        if held is None:
            return False
        self._end(held.pool_id)
        stack.append(None)
        self._resume_graph(held.key)
        return True

    def unpause(self) -> None:
        """Undo `pause`."""
        stack = self.nesting.stack
        stack.pop()
        held = stack[-1]
        if held is not None:
            self._divert(held)

    def forget(self, alive: Callable[[Key], bool]) -> int:
        """Drop the lanes of graphs that are gone, and return how many those were.

        Their memory goes back to the domain's pool. Ranks forget in the same places.
        """
        with self._lock:
            gone = sorted(k for k in self.lanes if k is not EAGER and not alive(k))
            return sum(len(self.lanes.pop(k)) for k in gone)

    def reset(self) -> None:
        """Drop the lanes of eager code, as far as no scope is open on them.

        Segments without tensors go back at once, others when their last tensor is gone.
        """
        with self._lock:
            self._first = None
            kept = [lane for lane in self.lanes.pop(EAGER, []) if not lane.acquire(blocking=False)]
            if kept:
                self.lanes[EAGER] = kept

    def _enter_slowly(self, stack: list[Lane | None], all_threads: bool) -> Lane | None:
        key = self.hooks.capture_key() if self._capturing() else EAGER
        held = stack[-1] if stack else None
        if (
            held is not None
            and held.owner is self
            and held.key == key
            and held.all_threads >= all_threads
        ):
            return None
        lane = self._take(key)
        lane.all_threads = all_threads
        if held is not None:
            self._end(held.pool_id)
        elif key is not EAGER:
            self.hooks.pause_graph(key)
        try:
            self._divert(lane)
        except BaseException:
            lane.release()
            self._resume(key, stack)
            raise
        stack.append(lane)
        return lane

    def _divert(self, lane: Lane) -> None:
        (self.hooks.begin_all if lane.all_threads else self._begin)(lane.pool_id)

    def _resume(self, key: Key, stack: list[Lane | None]) -> None:
        """Divert again to what stands on top of the stack."""
        held = stack[-1] if stack else None
        if held is not None:
            self._divert(held)
        elif not stack:
            self._resume_graph(key)

    def _resume_graph(self, key: Key) -> None:
        if key is not EAGER:
            self.hooks.resume_graph(key)

    def _take(self, key: Key) -> Lane:
        """Take the lowest free lane of a key, and make one if there is none."""
        with self._lock:
            lanes = self.lanes.setdefault(key, [])
            lane = next((one for one in lanes if one.acquire(blocking=False)), None)
            if lane is None:
                lane = Lane(self.hooks.new_pool(), key, self)
                lane.acquire()
                lanes.append(lane)
            if key is EAGER:
                self._first = lanes[0]
            return lane
