"""Sections of code whose tensors are symmetric, and the memory behind them."""

from __future__ import annotations

import ctypes as c
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from symmem._rank.group import Group
from symmem._rank.scope import Nothing
from symmem._rank.session import find
from symmem._torch.cuda import NO_POOL, live_pools
from symmem._torch.pytorch import DYNAMO, compiling, modules

if TYPE_CHECKING:
    from symmem._api.terms import GroupLike


def use(
    group: GroupLike = None, disabled: bool = False, *, all_threads: bool = False
) -> AbstractContextManager[Group | None]:
    """Open a scope: tensors that are made inside are symmetric among the ranks of the group.

    All ranks of the group's domain make the same tensors inside, in the same order. The end of the
    scope registers memory that is new; that is collective over the group, rare, and costs nothing
    when nothing is new. A scope that is left by an exception registers nothing.

    Scopes nest, of one group or several; the innermost counts. In the capture of a CUDA graph
    tensors come from memory that belongs to the graph. On GPUs this applies to every tensor that
    PyTorch allocates on this thread. PyTorch has no hook for allocations on CPUs, so on the host
    backend it applies to `symmem.empty` and the like, and to what the program makes by factories of
    PyTorch (`torch.zeros`, `torch.randn_like`, `Tensor.new_empty`), also in modules; results of
    other operations, such as `a + b`, are ordinary tensors there.

    Args:
        group: as `symmem.group` takes it; the world unless given.
        disabled: make ordinary tensors, even inside another scope. For code whose ranks have
            tensors of different shapes on some calls.
        all_threads: also for tensors that other threads make meanwhile, as `backward()` does. No
            thread but one allocates at a time then, or the order differs between ranks.
    """
    if DYNAMO in modules and compiling():
        return Nothing()
    found = group if group.__class__ is Group else find(group)
    if disabled:
        return found.scopes.disabled
    return found.scopes.threads if all_threads else found.scope


def reserve(nbytes: int, group: GroupLike = None, *, stream: Any = None) -> None:
    """Allocate and register memory in advance. Collective.

    Memory belongs to a stream, as PyTorch's does, so this is for tensors that are made on that
    stream. Reserve the memory of a CUDA graph before its capture, on the stream of the capture,
    since nothing can be registered during a capture. Graphs with private pools need
    memory for each. PyTorch asks for 2 MiB for tensors up to 1 MiB, 20 MiB for those up to 10 MiB.

    Args:
        nbytes: how many bytes, beyond those in use.
        group: whose memory; the world's unless given.
        stream: a CUDA stream; the current one unless given.
    """
    found = find(group)
    runtime = found.runtime
    runtime.require()
    runtime.attachments.wait_idle(found.handle)
    number = runtime.stream() if stream is None else int(stream.cuda_stream)
    previous = runtime.set_site() if runtime.callsites else None
    try:
        found.reserve(nbytes, number)
    finally:
        if previous is not None:
            runtime.library.raw.symmem_set_site(previous)


def trim(keep: int = 0, group: GroupLike = None) -> None:
    """Give memory without tensors back to the device. Collective over the group's domain.

    It waits for the device, and PyTorch's cache of the group's memory is emptied. Memory that
    a CUDA graph uses stays until the graph is destroyed.

    Args:
        keep: the bytes that stay mapped at least.
        group: whose memory; the world's unless given.
    """
    found = find(group)
    runtime = found.runtime
    if runtime.cuda is not None and found.router is not None:
        runtime.cuda.torch.module.cuda.synchronize()
        alive = live_pools(runtime.cuda.torch)
        # Whether a graph without a private pool lives cannot be seen, so it is taken to.
        found.router.forget(lambda key: key in alive or key[0] == NO_POOL)
        found.router.reset()
        runtime.cuda.torch.module.cuda.empty_cache()
    runtime.attachments.wait_idle(found.handle)
    if runtime.cuda is None:
        found.library.call("symmem_trim", found.pool, keep)
        return
    # PyTorch has waited for the device, so no stream is asked about: one may be destroyed.
    found.library.call("symmem_streams_idle", 1)
    try:
        found.library.call("symmem_trim", found.pool, keep)
    finally:
        found.library.call("symmem_streams_idle", 0)


def suspend(group: GroupLike = None, *, keep: bool = False) -> int:
    """Release the GPU memory of a group and of its tensors until `resume`. Collective.

    It waits for the device. Tensors keep their addresses and CUDA graphs stay valid, but until
    `resume` no kernel may use the tensors, and no graph with calls of the group may be replayed.
    If a message was not received, or a stream is captured, every rank raises `BusyError` or
    `CapturingError`.

    Args:
        group: whose memory; the world's unless given.
        keep: copy the contents to host memory. Otherwise the tensors are zero afterwards.

    Returns:
        the bytes that this rank has released.
    """
    found = find(group)
    if found.runtime.cuda is not None:
        found.runtime.cuda.torch.module.cuda.synchronize()
    found.runtime.attachments.wait_idle(found.handle)
    call = found.library.call
    pool, own = c.c_uint64(), c.c_uint64()
    call("symmem_pool_suspend", found.pool, int(keep), c.byref(pool))
    call("symmem_group_suspend", found.handle, c.byref(own))
    return pool.value + own.value


def resume(group: GroupLike = None) -> None:
    """Allocate the memory that `suspend` has released, at the same addresses. Collective."""
    found = find(group)
    found.library.call("symmem_group_resume", found.handle)
    found.library.call("symmem_pool_resume", found.pool)
