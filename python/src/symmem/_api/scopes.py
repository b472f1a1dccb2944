"""Scopes, in which tensors are symmetric, and functions that manage the memory of groups."""

from __future__ import annotations

import ctypes as c
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._rank.group import Group
from symmem._rank.scope import NoScope
from symmem._rank.session import find
from symmem._torch.cuda import NO_POOL, live_pools
from symmem._torch.pytorch import DYNAMO, compiling, modules

if TYPE_CHECKING:
    from symmem._api.terms import GroupLike


def use(
    group: GroupLike = None, disabled: bool = False, *, all_threads: bool = False
) -> AbstractContextManager[Group | None]:
    """Return a scope, in which new tensors are symmetric among the ranks of the group.

    All ranks of the group's domain must allocate the same tensors in the scope, in the same order.
    When the scope ends, it registers new memory, which is collective over the group. This is rare,
    and costs nothing if there is no new memory. A scope that ends with an exception registers
    nothing.

    Scopes of one or several groups can be nested, and the innermost one applies. During the capture
    of a CUDA graph, tensors are allocated from memory that belongs to the graph.

    On GPUs, a scope applies to every tensor that PyTorch allocates on this thread. On CPUs, PyTorch
    has no hook for allocations, so on the host backend a scope applies to `symmem.empty` and its
    relatives, and to calls of PyTorch's factories (`torch.zeros`, `torch.randn_like`,
    `Tensor.new_empty`), including those in modules. The results of other operations, such as
    `a + b`, are ordinary tensors there.

    Args:
        group: any argument that `symmem.group` accepts; the default is the world.
        disabled: allocate ordinary tensors, even inside another scope. Use it for code in which
            ranks may allocate tensors of different shapes.
        all_threads: include tensors that other threads allocate meanwhile, as `backward()` does.
            Only one thread may allocate at a time, or the order would differ between ranks.
    """
    if DYNAMO in modules and compiling():
        return NoScope()
    found = group if group.__class__ is Group else find(group)
    if disabled:
        return found.scopes.disabled
    return found.scopes.threads if all_threads else found.scope


def reserve(nbytes: int, group: GroupLike = None, *, stream: Any = None) -> None:
    """Allocate and register memory in advance. Collective.

    As in PyTorch, memory belongs to a stream, so the reserved memory is for tensors allocated on
    the given stream. Reserve the memory of a CUDA graph before its capture, on the capture's
    stream, because no memory can be registered during a capture. Each private pool of graphs needs
    its own memory. PyTorch requests 2 MiB for tensors of up to 1 MiB, and 20 MiB for those of up to
    10 MiB.

    Args:
        nbytes: the number of bytes to reserve in addition to those in use.
        group: the group whose memory is reserved; the default is the world.
        stream: a CUDA stream; the default is the current stream.
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
    """Return unused memory to the device. Collective over the group's domain.

    `trim` waits for the device and empties PyTorch's cache of the group's memory. Memory used by a
    CUDA graph is kept until the graph is destroyed.

    Args:
        keep: the number of bytes that must at least stay mapped.
        group: the group whose memory is returned; the default is the world.
    """
    found = find(group)
    runtime = found.runtime
    if runtime.cuda is not None and found.router is not None:
        runtime.cuda.torch.module.cuda.synchronize()
        alive = live_pools(runtime.cuda.torch)
        # A graph without a private pool cannot be observed, so assume that one is alive.
        found.router.forget(lambda key: key in alive or key[0] == NO_POOL)
        found.router.reset()
        runtime.cuda.torch.module.cuda.empty_cache()
    runtime.attachments.wait_idle(found.handle)
    if runtime.cuda is None:
        found.library.call("symmem_trim", found.pool, keep)
        return
    # PyTorch has waited for the device, so streams, which may have been destroyed, are not queried.
    found.library.call("symmem_streams_idle", 1)
    try:
        found.library.call("symmem_trim", found.pool, keep)
    finally:
        found.library.call("symmem_streams_idle", 0)


def suspend(group: GroupLike = None, *, keep: bool = False) -> int:
    """Release the GPU memory of a group and of its tensors until `resume`. Collective.

    `suspend` waits for the device. Tensors keep their addresses and CUDA graphs stay valid, but
    until `resume`, no kernel may access the tensors, and no graph with calls of the group may be
    replayed. All ranks raise `BusyError` if a message has not been received, or if a graph contains
    calls on the window path or, unless the environment variable NCCL_GRAPH_REGISTER is 0, on the
    plain path. They raise `CapturingError` if a stream is being captured.

    Args:
        group: the group whose memory is released; the default is the world.
        keep: save the contents in host memory. Otherwise the tensors are zero after `resume`.

    Returns:
        The number of bytes that this rank has released.
    """
    found = find(group)
    if found.runtime.cuda is not None:
        found.runtime.cuda.torch.module.cuda.synchronize()
    found.runtime.attachments.wait_idle(found.handle)
    call = found.library.call
    pool, own = c.c_uint64(), c.c_uint64()
    call("symmem_pool_suspend", found.pool, int(keep), c.byref(pool))
    try:
        call("symmem_group_suspend", found.handle, c.byref(own))
    except errors.SymmemError:
        with suppress(errors.SymmemError):
            call("symmem_pool_resume", found.pool)
        raise
    return pool.value + own.value


def resume(group: GroupLike = None) -> None:
    """Allocate the memory released by `suspend` again, at the same addresses. Collective."""
    found = find(group)
    found.library.call("symmem_group_resume", found.handle)
    found.library.call("symmem_pool_resume", found.pool)
