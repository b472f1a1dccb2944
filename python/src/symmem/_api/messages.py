"""Messages between two ranks, with the arguments of `torch.distributed`.

Messages of a pair of ranks with one tag are received in the order in which they are sent. There is
no order between messages and collectives, nor between messages of different ranks.
"""

from __future__ import annotations

import ctypes as c
from typing import TYPE_CHECKING

from symmem import errors
from symmem._api.call import Call, checked, member
from symmem._c.constants import ANY_SOURCE
from symmem._rank.group import Group
from symmem._rank.work import FinishedWork, Work
from symmem._torch.pytorch import pytorch

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
    """Send a tensor to one rank: `torch.distributed.send`.

    It does not wait for the receiver: data beyond the size of the channel is copied.

    Args:
        tensor: what is sent.
        dst: the receiver, by its number in torch.distributed.
        group: as `symmem.group` takes it; the world unless given.
        tag: a number from 0 to 2**31 - 1; the receive must have the same.
        group_dst: the receiver, by its number in the group; instead of dst.
    """
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
    """Send a tensor without waiting: `torch.distributed.isend`. Arguments are those of `send`."""
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
    """Receive a tensor: `torch.distributed.recv`.

    Args:
        tensor: what is written; the message has as many bytes.
        src: the sender, by its number in torch.distributed; any rank unless given. Then the call
            returns when the message is there, on GPUs too.
        group: as `symmem.group` takes it; the world unless given.
        tag: that of the message.
        group_src: the sender, by its number in the group; instead of src.

    Returns:
        The sender, by its number in torch.distributed; -1 on ranks that are not in the group.
    """
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
    """Receive a tensor without waiting: `torch.distributed.irecv`. Arguments are those of `recv`.

    The work's `source_rank` is the sender's number in the group, once the message is there.
    """
    found = member(group, "irecv")
    if found is None:
        return FinishedWork([])
    if not checked(found, "tensor", tensor):
        raise errors.InvalidError("tensor is not contiguous: irecv cannot write it; recv can")
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
        raise errors.InvalidError(f"tag {tag!r} is no number from 0 to 2**31 - 1")
    return tag
