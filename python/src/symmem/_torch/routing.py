"""Which pool of PyTorch's a thread allocates from.

PyTorch keeps, for each device, a list of pools that divert allocations. A pool may stand in it only
once, whichever thread put it there, so two threads cannot divert to one pool at the same time. They
do in practice: a scope around `backward()` on one thread, a scope inside a custom backward function
on another. So a domain has several *lanes*, each a MemPool of PyTorch's over the same pool of ours,
and a thread takes the lowest lane that no other thread holds. Which one that is depends only on who
is inside a scope at that point of the program, which ranks share.

While a CUDA graph is captured allocations go to lanes that belong to the graph's own private pool
and no others. So memory that a replay writes is not allocated again while the graph lives, and
graphs share memory exactly if the caller made them share PyTorch's pool.

Nothing here calls the C library: entering and leaving a scope costs calls into PyTorch alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

Key = tuple[int, int]
"""The private pool of a graph, by PyTorch's id, or EAGER."""

EAGER: Key = (-1, -1)


class Hooks(Protocol):
    """The functions of PyTorch that routing uses. Tests replace them."""

    capturing: Callable[[], Any]
    """Reports whether this thread's current stream is being captured."""

    def new_pool(self) -> Any:
        """Make a MemPool over symmem's memory; it has an attribute `id`."""

    def bind(self, pool_id: Key) -> Calls:
        """Bind the calls that divert to a pool, so that making them costs no more than need be."""

    def capture_key(self) -> Key:
        """Name the private pool of the capture that is under way."""

    def pause_graph(self, key: Key) -> None:
        """Stop diverting to a graph's private pool, where it would win over ours."""

    def resume_graph(self, key: Key) -> None:
        """Divert to a graph's private pool again."""


class Calls(NamedTuple):
    """The calls that divert allocations to one pool and stop that."""

    begin: Callable[[], Any]
    """Diverts this thread's allocations, and takes a reference to the pool."""
    begin_all: Callable[[], Any]
    """The same for all threads."""
    end: Callable[[], Any]
    """Stops diverting."""
    drop: Callable[[], Any]
    """Drops the reference."""


class Lane:
    """One MemPool of PyTorch's, which the open scopes of at most one thread divert to.

    States: free; held, from `acquire` to `release`. A free lane has a token, which is taken and put
    back by operations that are atomic in Python and cost a quarter of what a lock does.
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
        """Take the lane if it is free, and report whether it was."""
        try:
            self.token.pop()
        except IndexError:
            return False
        return True

    def release(self) -> None:
        """Give the lane back."""
        self.token.append(None)

    def divert(self) -> None:
        """Divert the thread that holds the lane, or all."""
        (self.begin_all if self.all_threads else self.begin)()

    def restore(self) -> None:
        """Undo `divert`."""
        self.end()
        self.drop()


class Nesting(threading.local):
    """The lanes that this thread's open scopes divert to, outermost first; None is ordinary memory.

    A lane that stands directly above itself was diverted to already, so that leaving the upper one
    changes nothing. All domains of a device share one nesting, since a thread diverts to one pool
    at a time.
    """

    def __init__(self) -> None:
        self.stack: list[Lane | None] = []


class Router:
    """The lanes of one domain on one device. It is safe for concurrent use.

    Attributes:
        first: the lane that eager scopes take unless something is special; None before there is one
            and after `close`, which makes every scope go through `enter`.
    """

    def __init__(self, hooks: Hooks, nesting: Nesting):
        self.hooks = hooks
        self.nesting = nesting
        self.capturing = hooks.capturing
        self.lanes: dict[Key, list[Lane]] = {}
        self.first: Lane | None = None
        self._lock = threading.Lock()

    def enter(self, all_threads: bool = False) -> None:
        """Divert this thread to the domain's memory."""
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
        """Undo `enter`: the thread is diverted to what it was diverted to before."""
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
        """Let this thread allocate ordinary memory."""
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
            self.first = None
            kept = [lane for lane in self.lanes.pop(EAGER, []) if not lane.acquire()]
            if kept:
                self.lanes[EAGER] = kept

    def _resume(self, key: Key, stack: list[Lane | None]) -> None:
        """Divert again to what stands on top of the stack."""
        held = stack[-1] if stack else None
        if held is not None:
            held.divert()
        else:
            self._resume_graph(key)

    def _resume_graph(self, key: Key) -> None:
        if key is not EAGER:
            self.hooks.resume_graph(key)

    def _take(self, key: Key) -> Lane:
        """Take the lowest free lane of a key, and make one if there is none."""
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
