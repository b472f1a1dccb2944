"""Registers memory with PyTorch's own communicators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from symmem._rank.group import Group
from symmem._rank.session import find, session
from symmem._torch.pytorch import pytorch
from symmem.errors import UnsupportedError

if TYPE_CHECKING:
    from symmem._api.terms import GroupLike


def attach(process_group: GroupLike = None) -> Group:
    """Register the group's memory with PyTorch's own communicator as well. Collective.

    Calls of torch.distributed on this process group then use windows, if their tensors were
    allocated in scopes of the returned group. The program need not change. NCCL alone chooses the
    kernel: symmem's tuning table and its comparison of calls do not apply.

    The process group must use PyTorch's "nccl" backend, and must have no pending work on other
    streams. Call `detach` before destroying it.
    """
    session.anyone.require()
    if session.anyone.device is None:
        raise UnsupportedError("attach needs an NCCL communicator; symmem uses the host backend")
    pg = pytorch().distributed.group.WORLD if process_group is None else process_group
    found = find(pg)
    runtime = found.runtime
    assert runtime.device is not None
    runtime.attachments.attach(pg, found.handle, runtime.device)
    return found


def detach(process_group: GroupLike = None) -> bool:
    """Undo `attach` on this rank. Return False if the process group was not attached."""
    pg = pytorch().distributed.group.WORLD if process_group is None else process_group
    return any(runtime.attachments.detach(pg) for runtime in session.runtimes)
