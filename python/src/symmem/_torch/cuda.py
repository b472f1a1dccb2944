"""Connects symmem's pools to PyTorch's CUDA allocator."""

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
from symmem._torch.pytorch import Torch, pytorch
from symmem._torch.routing import Calls, Key, Nesting, Router

NO_POOL = -2
"""The first number of the key of a capture that has no private pool."""

_NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: the stream does not wait for the default stream."""

FORCED_WAIT = 2.0
"""How long a forced close waits for the device, where a kernel may hang, in seconds."""


def completes_within(seconds: float, wait: Callable[[], object]) -> bool:
    """Call `wait` on another thread, and return whether it returned or raised in time."""
    completed = threading.Event()

    def run() -> None:
        with contextlib.suppress(Exception):  # A failed device has no work in progress.
            wait()
        completed.set()

    threading.Thread(target=run, name="symmem-close", daemon=True).start()
    return completed.wait(seconds)


@cache
def _driver() -> c.CDLL:
    """Return the CUDA driver's library, which PyTorch has already loaded."""
    driver = c.CDLL("libcuda.so.1")
    # In cuda.h of CUDA 11.3 and later, all output pointers except that of the status may be null.
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
    """Return CUDA's number of the capture on a stream, which is unique in the process."""
    status, number = c.c_int(0), c.c_uint64(0)
    code = _driver().cuStreamGetCaptureInfo_v2(
        stream, c.byref(status), c.byref(number), None, None, None
    )
    if code != 0:
        raise errors.SymmemError(f"cuStreamGetCaptureInfo failed with CUresult {code}")
    return number.value


def driver_call(name: str, *arguments: Any) -> None:
    """Call a function of the CUDA driver that returns a CUresult."""
    if code := getattr(_driver(), name)(*arguments):
        raise errors.SymmemError(f"{name} failed with CUresult {code}")


@cache
def own_stream(device: int) -> Any:
    """Return a stream of a device that nothing else in the process uses, creating it once.

    `torch.cuda.Stream` would return one of 32 shared streams, on which a kernel may be waiting.
    """
    number, context, stream = c.c_int(), c.c_void_p(), c.c_void_p()
    driver_call("cuDeviceGet", c.byref(number), device)
    driver_call("cuDevicePrimaryCtxRetain", c.byref(context), number)  # never released
    driver_call("cuCtxPushCurrent_v2", context)
    try:
        driver_call("cuStreamCreate", c.byref(stream), _NON_BLOCKING)
    finally:
        driver_call("cuCtxPopCurrent_v2", c.byref(context))
    return pytorch().module.cuda.ExternalStream(stream.value, device=device)


def aside(device: int | None) -> contextlib.AbstractContextManager[object]:
    """Return a context for copies that do not wait for kernels. None stands for the CPU."""
    if device is None:
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[object] = pytorch().module.cuda.stream(
        own_stream(device)
    )
    return context


class Captures:
    """Caches the latest capture on a device and its private pool, for the scopes of all domains.

    Domains share the cache because a scope nested in the first scope of a capture cannot find the
    private pool itself: its probe would be allocated from the pool of the outer scope.
    """

    def __init__(self) -> None:
        self.last: tuple[int, Key] | None = None


class TorchHooks:
    """Implements `Hooks` with PyTorch's allocator, for one device and one of symmem's pools."""

    def __init__(self, torch: Torch, device: int, allocator: Any, captures: Captures):
        self.torch = torch
        self.device = device
        self.allocator = allocator
        self.capturing = torch.is_capturing
        self._captures = captures

    def new_pool(self) -> Any:
        """Return a new MemPool that allocates symmem's memory."""
        return self.torch.module.cuda.MemPool(self.allocator.allocator())

    def bind(self, pool_id: Key) -> Calls:
        """Return the calls that divert allocations to a pool."""
        names = self.torch.begin, self.torch.begin_all, self.torch.end, self.torch.release
        return Calls(*(partial(call, self.device, pool_id) for call in names))

    def capture_key(self) -> Key:
        """Return the id of the private pool of the capture in progress.

        PyTorch has no query for it, so the first scope of a capture allocates one element and finds
        the pool that contains it. The element also keeps the private pool's first segment in use,
        from which `live_pools` infers that the graph is alive.
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
        """Stop diverting to the graph's pool, because older PyTorch uses the outermost pool."""
        if not self.torch.nested_pools and key[0] != NO_POOL:
            self.torch.end(self.device, key)

    def resume_graph(self, key: Key) -> None:
        """Undo `pause_graph`. Release the pool reference that the `begin` call takes."""
        if not self.torch.nested_pools and key[0] != NO_POOL:
            self.torch.begin(self.device, key)
            self.torch.release(self.device, key)


def snapshot(torch: Torch) -> list[dict[str, Any]]:
    """Return all segments of PyTorch's allocator, without its history."""
    function = torch.module.cuda.memory_snapshot
    if "include_traces" in inspect.signature(function).parameters:
        found: list[dict[str, Any]] = function(include_traces=False)
        return found
    return list(function())


def live_pools(torch: Torch) -> set[Key]:
    """Return the private pools that have memory, after PyTorch has freed that of dead graphs."""
    torch.module.cuda.empty_cache()
    pools = (tuple(s["segment_pool_id"]) for s in snapshot(torch))
    return {(p[0], p[1]) for p in pools}


class CudaPools:
    """The router of each of symmem's pools, on this rank's device.

    A process creates one CudaPools and never deletes it, because PyTorch may call the allocators
    until the process exits.
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
        """Return the router of a pool, creating it on the first call."""
        found = self.routers.get(pool)
        if found is None:
            hooks = TorchHooks(self.torch, self.device, self.allocator(pool), self._captures)
            found = Router(hooks, self._nesting)
            self.routers[pool] = found
        return found

    def inside(self) -> bool:
        """Return whether this thread is inside a scope."""
        return bool(self._nesting.stack)

    def allocator(self, pool: int) -> Any:
        """Return PyTorch's allocator of a pool's memory."""
        if not 0 <= pool < POOLS:
            raise errors.UnsupportedError(
                f"PyTorch can use only the first {POOLS} pools, not pool {pool}"
            )
        if pool not in self._allocators:
            make = self.torch.module.cuda.memory.CUDAPluggableAllocator
            self._allocators[pool] = make(
                str(self._library.path), f"symmem_torch_alloc_{pool}", "symmem_torch_free"
            )
        return self._allocators[pool]

    def blocks(self, pool: int) -> list[tuple[int, int, int, bool]]:
        """Return the address, size, segment address and use of PyTorch's blocks in a pool."""
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
