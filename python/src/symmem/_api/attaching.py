"""Windows on PyTorch's own communicators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from symmem._rank.group import Group
from symmem._rank.session import find, session
from symmem._torch.pytorch import pytorch
from symmem.errors import UnsupportedError

if TYPE_CHECKING:
    from symmem._api.terms import GroupLike


def attach(process_group: GroupLike = None) -> Group:
    """Register the group's memory with PyTorch's own communicator, too. Collective.

    Calls of torch.distributed on this process group then run on windows, without a change in the
    program, if their tensors were made in scopes of the group that is returned. NCCL alone chooses
    the kernel: symmem's tuning table and its comparison of calls do not apply.

    The process group is on the "nccl" backend of PyTorch, and nothing is under way on it on other
    streams. Detach it before it is destroyed.
    """
    session.anyone.require()
    if session.anyone.device is None:
        raise UnsupportedError("attach is for NCCL communicators; symmem runs on the host backend")
    pg = pytorch().distributed.group.WORLD if process_group is None else process_group
    found = find(pg)
    runtime = found.runtime
    assert runtime.device is not None
    runtime.attachments.attach(pg, found.handle, runtime.device)
    return found


def detach(process_group: GroupLike = None) -> bool:
    """Undo `attach` on this rank, and report whether there was anything to undo."""
    pg = pytorch().distributed.group.WORLD if process_group is None else process_group
    return any(runtime.attachments.detach(pg) for runtime in session.runtimes)
