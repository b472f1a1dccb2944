"""Waiting for ranks and for streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from symmem import errors
from symmem._api.call import Call, member, outside
from symmem._rank.session import session
from symmem._rank.work import Work

if TYPE_CHECKING:
    from symmem._api.terms import GroupLike


@overload
def barrier(
    group: GroupLike = ...,
    async_op: Literal[False] = ...,
    device_ids: Sequence[int] | None = ...,
) -> None: ...


@overload
def barrier(
    group: GroupLike = ...,
    async_op: Literal[True] = ...,
    device_ids: Sequence[int] | None = ...,
) -> Work: ...


@overload
def barrier(
    group: GroupLike = ..., async_op: bool = ..., device_ids: Sequence[int] | None = ...
) -> Work | None: ...


def barrier(
    group: GroupLike = None, async_op: bool = False, device_ids: Sequence[int] | None = None
) -> Work | None:
    """Wait until all ranks have come: on GPUs the current stream waits, on the host the caller.

    Args:
        group: as `symmem.group` takes it; the world unless given.
        async_op: return at once, with a Work to wait for.
        device_ids: the rank's own device, as torch.distributed takes it, or None.
    """
    if (g := member(group, "barrier")) is None:
        return outside(async_op)
    device = g.runtime.device
    if device_ids is not None and list(device_ids) != [device]:
        ours = "the host" if device is None else f"device {device}"
        raise errors.InvalidError(f"device_ids {device_ids!r}: symmem was opened on {ours}")
    return Call(g, async_op).run("symmem_barrier")


def synchronize() -> None:
    """Wait for the current stream, and raise the first error of symmem's work on it.

    On the host backend, where tensors have no stream, it waits for the work of all groups. It waits
    for the work of all worlds.
    """
    runtime = session.anyone
    runtime.require()
    if runtime.device is not None:
        runtime.library.call("symmem_stream_synchronize", runtime.stream())
        return
    failed = None
    # Calls without async_op have waited.
    for stream in {*session.default_streams(), *runtime.streams.busy}:
        try:
            runtime.streams.synchronize(stream)
        except errors.SymmemError as e:
            failed = failed or e
    if failed is not None:
        raise failed


def forget_stream(stream: Any) -> None:
    """Release what symmem keeps for a CUDA stream that is about to be destroyed, once it is idle.

    Otherwise symmem keeps it until it is closed. PyTorch's streams come from a fixed set that lives
    as long as the process, so they need not be forgotten.

    Args:
        stream: a CUDA stream, or its address as a number.
    """
    runtime = session.anyone
    runtime.require()
    if runtime.device is None:
        raise errors.UnsupportedError("the host backend has no CUDA streams to forget")
    number = int(getattr(stream, "cuda_stream", stream))
    runtime.library.call("symmem_stream_forget", number)
