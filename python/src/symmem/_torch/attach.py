"""Windows on communicators of PyTorch's own, for programs that do not change their calls."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from symmem import errors
from symmem._c.library import Library
from symmem._torch.pytorch import communicator_of, is_known, pytorch


@dataclass
class Attachment:
    """A process group's communicator that gets a window wherever a group of symmem's has one.

    Attributes:
        group: the handle of that group.
        handle: the attachment's own.
        device: the ordinal of the CUDA device.
        address: where the communicator lies.
    """

    process_group: Any
    group: int
    handle: int
    name: str
    device: int
    address: int

    def alive(self) -> bool:
        """Report whether the communicator is the one that was attached, and not aborted.

        torch.distributed keeps a process group whose communicator was aborted, and frees that. So
        this is asked right before each use.
        """
        if not is_known(self.process_group):
            return False
        try:
            return communicator_of(self.process_group, self.device) == self.address
        except RuntimeError:
            return False


def communicator(process_group: Any, device: int) -> int:
    """Return the address of a process group's ncclComm_t; PyTorch makes one if there is none."""
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
    """All attachments of this rank, by the process group's identity."""

    library: Library
    found: dict[int, Attachment] = field(default_factory=dict)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def attach(self, process_group: Any, group: int, device: int) -> Attachment:
        """Attach a process group's communicator to a group, by its handle. Collective over it."""
        self.prune()
        if known := self.found.get(id(process_group)):
            return known
        address = communicator(process_group, device)
        pytorch().module.cuda.synchronize(device)
        name = f"{process_group.group_name} {next(self.numbers)}"
        text = name.encode()
        handle = self.library.number("symmem_attach", group, address, len(text), text)
        made = Attachment(process_group, group, handle, name, device, address)
        self.found[id(process_group)] = made
        return made

    def detach(self, process_group: Any) -> bool:
        """Detach a process group, and report whether it was attached."""
        made = self.found.pop(id(process_group), None)
        if made is None:
            return False
        self._end(made)
        return True

    def detach_all(self) -> None:
        """Detach everything, the latest first."""
        for key in reversed(list(self.found)):
            self._end(self.found.pop(key))

    def prune(self) -> None:
        """Forget what torch.distributed has destroyed or aborted: its windows went with it."""
        for key, made in list(self.found.items()):
            if not made.alive():
                self._end(self.found.pop(key))

    def wait_idle(self, group: int) -> None:
        """Before windows are registered: nothing may run on the communicators that get them.

        The group is given by its handle.
        """
        if not self.found:
            return
        self.prune()
        if any(a.group == group for a in self.found.values()):
            found = pytorch()
            if not found.is_capturing():
                found.module.cuda.synchronize()

    def _end(self, made: Attachment) -> None:
        self.library.call("symmem_detach", made.handle, int(made.alive()))
