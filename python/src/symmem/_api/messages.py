"""Point-to-point messages, with the arguments of `torch.distributed`.

Messages with the same sender, receiver and tag are received in the order in which they were sent.
Messages are not ordered with collectives or with messages of other ranks.
"""

from __future__ import annotations

import ctypes as c
from typing import TYPE_CHECKING

from symmem import errors
from symmem._api import compiled
from symmem._api.call import Call, checked, member
from symmem._c.constants import ANY_SOURCE
from symmem._rank.group import Group
from symmem._rank.work import FinishedWork, Work
from symmem._torch.pytorch import compiling, pytorch

if TYPE_CHECKING:
    import torch

    from symmem._api.terms import GroupLike


def send(
    tensor: torch.Tensor,
    dst: int | None = None,
    group: GroupLike = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Send a tensor to another rank, like `torch.distributed.send`.

    `send` does not wait for the receiver; data that does not fit in the channel is copied.

    Args:
        tensor: the tensor to send.
        dst: the receiver's global rank.
        group: any argument that `symmem.group` accepts; the default is the world.
        tag: a number from 0 to 2**31 - 1, which must match the receiver's.
        group_dst: the receiver's rank in the group, as an alternative to dst.
    """
    if compiling():
        compiled.between_graphs("send")(tensor, dst, group, tag, group_dst)
        return
    found = member(group, "send")
    if found is not None:
        _send(found, tensor, found.root(dst, group_dst), tag, False)


def isend(
    tensor: torch.Tensor,
    dst: int | None = None,
    group: GroupLike = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Work:
    """Send a tensor asynchronously, like `torch.distributed.isend`. See `send` for arguments."""
    if compiling():
        started: Work = compiled.between_graphs("isend")(tensor, dst, group, tag, group_dst)
        return started
    found = member(group, "isend")
    if found is None:
        return FinishedWork([])
    work = _send(found, tensor, found.root(dst, group_dst), tag, True)
    assert work is not None
    return work


def recv(
    tensor: torch.Tensor,
    src: int | None = None,
    group: GroupLike = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Receive a tensor from another rank, like `torch.distributed.recv`.

    Args:
        tensor: receives the message, which must have the same number of bytes.
        src: the sender's global rank; the default is any rank. With the default, the call returns
            only after the message has arrived, also on GPUs.
        group: any argument that `symmem.group` accepts; the default is the world.
        tag: the tag of the message.
        group_src: the sender's rank in the group, as an alternative to src.

    Returns:
        The sender's global rank, or -1 on a rank that is not in the group.
    """
    if compiling():
        source: int = compiled.between_graphs("recv")(tensor, src, group, tag, group_src)
        return source
    found = member(group, "recv")
    if found is None:
        return -1
    call = Call(found, False, "receives")
    source = _source(found, src, group_src)
    _receive(call, tensor, source, tag)
    if source == ANY_SOURCE and found.runtime.device is not None:
        found.runtime.library.call("symmem_stream_synchronize", call.stream)
    return found.torch_rank(call.source.value)


def irecv(
    tensor: torch.Tensor,
    src: int | None = None,
    group: GroupLike = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Work:
    """Receive a tensor asynchronously, like `torch.distributed.irecv`. See `recv` for arguments.

    After the message has arrived, the work's `source_rank` is the sender's rank in the group.
    """
    if compiling():
        started: Work = compiled.between_graphs("irecv")(tensor, src, group, tag, group_src)
        return started
    found = member(group, "irecv")
    if found is None:
        return FinishedWork([])
    if not checked(found, "tensor", tensor):
        raise errors.InvalidError("irecv needs a contiguous tensor; use recv for this one")
    call = Call(found, True, "receives")
    work = _receive(call, tensor, _source(found, src, group_src), tag)
    assert work is not None
    return work


def _source(group: Group, src: int | None, group_src: int | None) -> int:
    if src is None and group_src is None:
        return ANY_SOURCE
    return group.root(src, group_src)


def _send(group: Group, tensor: torch.Tensor, peer: int, tag: int, async_op: bool) -> Work | None:
    call = Call(group, async_op, "sends")
    flat = call.read("tensor", tensor)
    kind = pytorch().element(flat.dtype)
    return call.run("symmem_send", flat.numel(), kind, peer, _valid(tag), flat.data_ptr())


def _receive(call: Call, tensor: torch.Tensor, source: int, tag: int) -> Work | None:
    flat = call.write("tensor", tensor)
    kind = pytorch().element(flat.dtype)
    call.source = c.c_int32(source)
    place = flat.data_ptr(), c.byref(call.source)
    return call.run("symmem_recv", flat.numel(), kind, source, _valid(tag), *place)


def _valid(tag: int) -> int:
    if not isinstance(tag, int) or not 0 <= tag < 1 << 31:
        raise errors.InvalidError(f"tag {tag!r} is not an integer from 0 to 2**31 - 1")
    return tag
