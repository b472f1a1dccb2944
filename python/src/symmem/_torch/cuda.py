"""symmem's memory behind PyTorch's CUDA allocator."""

from __future__ import annotations

import contextlib
import ctypes as c
import inspect
import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from symmem import errors
from symmem._c.library import POOLS, Library
from symmem._torch.pytorch import Torch
from symmem._torch.routing import Calls, Key, Nesting, Router

NO_POOL = -2
"""In place of a private pool's first number: a capture without a private pool."""

FORCED_WAIT = 2.0
"""How many seconds a forced close waits for the device, which may have a kernel that hangs."""


def completes_within(seconds: float, wait: Callable[[], object]) -> bool:
    """Wait on another thread, and report whether that ended in time, with or without an error."""
    ended = threading.Event()

    def run() -> None:
        with contextlib.suppress(Exception):  # a device that has failed has nothing under way
            wait()
        ended.set()

    threading.Thread(target=run, name="symmem-close", daemon=True).start()
    return ended.wait(seconds)


@cache
def _driver() -> c.CDLL:
    """Load the CUDA driver's library, which PyTorch has loaded before."""
    driver = c.CDLL("libcuda.so.1")
    # cuda.h, CUDA 11.3 and later: every output but the status may be null.
    driver.cuStreamGetCaptureInfo_v2.argtypes = [
        c.c_void_p,
        c.POINTER(c.c_int),
        c.POINTER(c.c_uint64),
        c.c_void_p,
        c.c_void_p,
        c.c_void_p,
    ]
    return driver


def capture_id(stream: int) -> int:
    """Number the capture that a stream is in; every capture of a process has its own number."""
    status, number = c.c_int(0), c.c_uint64(0)
    code = _driver().cuStreamGetCaptureInfo_v2(
        stream, c.byref(status), c.byref(number), None, None, None
    )
    if code != 0:
        raise errors.SymmemError(f"asking CUDA about a capture: CUresult {code}")
    return number.value


class Captures:
    """The capture that was looked at last, and its private pool: for all scopes of a device.

    A scope of another domain, inside of the first of a capture, would find that one's pool.
    """

    def __init__(self) -> None:
        self.last: tuple[int, Key] | None = None


class TorchHooks:
    """`Hooks` on PyTorch's allocator, for one device and one of symmem's pools."""

    def __init__(self, torch: Torch, device: int, allocator: Any, captures: Captures):
        self.torch = torch
        self.device = device
        self.allocator = allocator
        self.capturing = torch.is_capturing
        self._captures = captures

    def new_pool(self) -> Any:
        """Make a MemPool over symmem's memory."""
        return self.torch.module.cuda.MemPool(self.allocator.allocator())

    def bind(self, pool_id: Key) -> Calls:
        """Bind the calls that divert to a pool."""
        names = self.torch.begin, self.torch.begin_all, self.torch.end, self.torch.release
        return Calls(*(partial(call, self.device, pool_id) for call in names))

    def capture_key(self) -> Key:
        """Name the private pool of the capture that is under way.

        PyTorch has no query for it, so the first scope of a capture allocates one element and finds
        the pool that holds it. That element also keeps the private pool's first segment in use,
        by which `live_pools` sees that the graph lives.
        """
        number = capture_id(self.torch.raw_stream(self.device))
        known = self._captures.last
        if known is None or known[0] != number:
            known = self._captures.last = (number, self._probe(number))
        return known[1]

    def _probe(self, number: int) -> Key:
        torch = self.torch.module
        element = torch.empty(1, dtype=torch.uint8, device=f"cuda:{self.device}")
        address = element.data_ptr()
        for segment in snapshot(self.torch):
            if segment["address"] <= address < segment["address"] + segment["total_size"]:
                key = tuple(segment["segment_pool_id"])
                return (NO_POOL, number) if key == (0, 0) else (key[0], key[1])
        return (NO_POOL, number)

    def pause_graph(self, key: Key) -> None:
        """Before PyTorch 2.10 the outermost of nested pools wins, so the graph's is ended."""
        if not self.torch.nested_pools and key[0] != NO_POOL:
            self.torch.end(self.device, key)

    def resume_graph(self, key: Key) -> None:
        """Undo `pause_graph`; the reference that beginning takes is given back."""
        if not self.torch.nested_pools and key[0] != NO_POOL:
            self.torch.begin(self.device, key)
            self.torch.release(self.device, key)


def snapshot(torch: Torch) -> list[dict[str, Any]]:
    """List all segments of PyTorch's allocator, without its history."""
    function = torch.module.cuda.memory_snapshot
    if "include_traces" in inspect.signature(function).parameters:
        found: list[dict[str, Any]] = function(include_traces=False)
        return found
    return list(function())


def live_pools(torch: Torch) -> set[Key]:
    """List the private pools that have memory. PyTorch frees that of dead graphs when asked to."""
    torch.module.cuda.empty_cache()
    pools = (tuple(s["segment_pool_id"]) for s in snapshot(torch))
    return {(p[0], p[1]) for p in pools}


class CudaPools:
    """The router of each of symmem's pools, on this rank's device.

    It is made once for a process and kept: PyTorch may call its allocators until the process ends.
    """

    def __init__(self, torch: Torch, library: Library, device: int):
        self.torch = torch
        self.device = device
        self.routers: dict[int, Router] = {}
        self._library = library
        self._nesting = Nesting()
        self._captures = Captures()
        self._allocators: dict[int, Any] = {}

    def router(self, pool: int) -> Router:
        """Find the router of a pool, or make it."""
        found = self.routers.get(pool)
        if found is None:
            hooks = TorchHooks(self.torch, self.device, self._allocator(pool), self._captures)
            found = Router(hooks, self._nesting)
            self.routers[pool] = found
        return found

    def inside(self) -> bool:
        """Report whether this thread is inside a scope."""
        return bool(self._nesting.stack)

    def _allocator(self, pool: int) -> Any:
        if not 0 <= pool < POOLS:
            raise errors.UnsupportedError(f"pool {pool}: PyTorch can be given {POOLS} pools")
        if pool not in self._allocators:
            make = self.torch.module.cuda.memory.CUDAPluggableAllocator
            self._allocators[pool] = make(
                str(self._library.path), f"symmem_torch_alloc_{pool}", "symmem_torch_free"
            )
        return self._allocators[pool]

    def blocks(self, pool: int) -> list[tuple[int, int, int, bool]]:
        """List PyTorch's blocks in a pool's memory: address, bytes, segment's address, in use."""
        router = self.routers.get(pool)
        if router is None:
            return []
        ids = {lane.pool_id for lanes in router.lanes.values() for lane in lanes}
        return sorted(
            (b["address"], b["size"], s["address"], b["state"] != "inactive")
            for s in snapshot(self.torch)
            if tuple(s["segment_pool_id"]) in ids
            for b in s["blocks"]
        )
