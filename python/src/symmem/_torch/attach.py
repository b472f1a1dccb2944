"""Windows on PyTorch's own communicators, for programs that keep their PyTorch calls."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from symmem import errors
from symmem._c.library import Library
from symmem._torch.pytorch import communicator_of, is_known, pytorch


@dataclass
class Attachment:
    """A process group's communicator on which all windows of a symmem group are also registered.

    Attributes:
        group: the handle of the symmem group.
        handle: the handle of the attachment.
        device: the ordinal of the CUDA device.
        address: the address of the ncclComm_t.
    """

    process_group: Any
    group: int
    handle: int
    name: str
    device: int
    address: int

    def alive(self) -> bool:
        """Return whether the process group still has the attached communicator, not aborted.

        Call this immediately before each use of the communicator, because torch.distributed frees
        an aborted communicator but keeps its process group.
        """
        if not is_known(self.process_group):
            return False
        try:
            return communicator_of(self.process_group, self.device) == self.address
        except RuntimeError:
            return False


def communicator(process_group: Any, device: int) -> int:
    """Return the address of a process group's ncclComm_t, which PyTorch creates if necessary."""
    address = communicator_of(process_group, device)
    if not address:
        found = pytorch()
        found.distributed.all_reduce(
            found.module.zeros(1, device=f"cuda:{device}"), group=process_group
        )
        address = communicator_of(process_group, device)
    if not address:
        raise errors.UnsupportedError(f"{process_group!r} has no communicator on cuda:{device}")
    return address


@dataclass
class Attachments:
    """All attachments of this rank, by the id of the process group."""

    library: Library
    by_id: dict[int, Attachment] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def attach(self, process_group: Any, group: int, device: int) -> Attachment:
        """Attach a process group's communicator to the group with a handle. Collective."""
        self.prune()
        if known := self.by_id.get(id(process_group)):
            return known
        address = communicator(process_group, device)
        pytorch().module.cuda.synchronize(device)
        name = f"{process_group.group_name} {next(self.numbers)}"
        text = name.encode()
        handle = self.library.number("symmem_attach", group, address, len(text), text)
        attachment = Attachment(process_group, group, handle, name, device, address)
        self.by_id[id(process_group)] = attachment
        return attachment

    def detach(self, process_group: Any) -> bool:
        """Detach a process group, and return whether it was attached."""
        attachment = self.by_id.pop(id(process_group), None)
        if attachment is None:
            return False
        self._detach(attachment)
        return True

    def detach_all(self) -> None:
        """Detach all process groups, the latest first."""
        for key in reversed(list(self.by_id)):
            self._detach(self.by_id.pop(key))

    def prune(self) -> None:
        """Drop attachments whose communicator was destroyed or aborted, along with its windows."""
        for key, attachment in list(self.by_id.items()):
            if not attachment.alive():
                self._detach(self.by_id.pop(key))

    def wait_idle(self, group: int) -> None:
        """Wait for all work on the communicators that are attached to the group with a handle.

        Nothing may run on a communicator while windows are registered on it.
        """
        if not self.by_id:
            return
        self.prune()
        if any(a.group == group for a in self.by_id.values()):
            found = pytorch()
            if not found.is_capturing():
                found.module.cuda.synchronize()

    def _detach(self, attachment: Attachment) -> None:
        self.library.call("symmem_detach", attachment.handle, int(attachment.alive()))
