"""Functions that wait for ranks and streams."""

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
    """Wait for all ranks. On GPUs the current stream waits; on the host the caller does.

    Args:
        group: any argument that `symmem.group` accepts; the default is the world.
        async_op: return a `Work` immediately instead of waiting.
        device_ids: a list with only the rank's device, as in torch.distributed, or None.
    """
    if (g := member(group, "barrier")) is None:
        return outside(async_op)
    device = g.runtime.device
    if device_ids is not None and list(device_ids) != [device]:
        ours = "the host" if device is None else f"device {device}"
        raise errors.InvalidError(
            f"device_ids is {device_ids!r}, but symmem was initialized on {ours}"
        )
    return Call(g, async_op).run("symmem_barrier")


def synchronize() -> None:
    """Wait for the current stream, and raise the first error of symmem's work on it.

    On the host backend, where tensors have no stream, it waits for the work of all groups in all
    worlds.
    """
    runtime = session.anyone
    runtime.require()
    if runtime.device is not None:
        runtime.library.call("symmem_stream_synchronize", runtime.stream())
        return
    failed = None
    # Calls without async_op have already waited.
    for stream in {*session.default_streams(), *runtime.streams.busy}:
        try:
            runtime.streams.synchronize(stream)
        except errors.SymmemError as e:
            failed = failed or e
    if failed is not None:
        raise failed


def forget_stream(stream: Any) -> None:
    """Release symmem's resources for a CUDA stream that is about to be destroyed, once it is idle.

    Otherwise they are kept until symmem is closed. PyTorch's own streams need no call, because they
    come from a fixed set that lives as long as the process.

    Args:
        stream: a CUDA stream, or its address as an integer.
    """
    runtime = session.anyone
    runtime.require()
    if runtime.device is None:
        raise errors.UnsupportedError("the host backend has no CUDA streams")
    number = int(getattr(stream, "cuda_stream", stream))
    runtime.library.call("symmem_stream_forget", number)
