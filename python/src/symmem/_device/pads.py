"""Checked pads: memory for signals between kernels."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from typing import TYPE_CHECKING

from symmem import errors
from symmem._rank.group import Group
from symmem._rank.session import find
from symmem._torch.pytorch import pytorch

if TYPE_CHECKING:
    from symmem._api.terms import GroupLike


class CheckedPad:
    """Memory through which kernels of all ranks of a group signal each other, with checks.

    Pass `address` to a kernel that uses `symmem.triton`, or `symmem_device.cuh` in CUDA C++, and
    call `check` after the kernel. The timeout of each wait is that of the group when the pad was
    created. After a failure, the pad stays failed on all ranks: close it, and create another one if
    the program can go on.

    Attributes:
        address: the address of this rank's pad, on its device.
        group: the group.
        sites: the names of call sites in error messages.
    """

    def __init__(self, group: Group, sites: Sequence[str]):
        self.group, self.sites = group, tuple(sites)
        names = (c.c_char_p * len(self.sites))(*(name.encode() for name in self.sites))
        self.address = group.library.number("symmem_pad_open", group.handle, len(names), names)
        self._closed = False

    def close(self) -> None:
        """Free this rank's pad. No kernel of any rank may use it any more.

        Ranks must close pads in the same order, so a pad is not closed when it becomes unreachable.
        After an error, such as a time-out, it can be closed again.
        """
        if not self._closed:
            self.group.library.call("symmem_pad_close", self.address)
            self._closed = True

    def check(self) -> None:
        """Raise an error if a wait has failed on any rank. On GPUs, wait for the current stream.

        Raises:
            TimeoutError: ranks did not signal in time.
            RankLostError: the process of a rank has ended, so the rank cannot signal.
            SymmemError: the group has failed, which stops its kernels.
            DivergenceError: ranks signalled from different call sites, or too early.
        """
        self._require_open()
        device = self.group.runtime.device
        if device is not None:
            pytorch().module.cuda.current_stream(device).synchronize()
        self.group.library.call("symmem_pad_check", self.address)

    def explain(self) -> str:
        """Describe signals that this rank has not waited for. A kernel may be waiting meanwhile."""
        self._require_open()
        text = self.group.library.text("symmem_pad_explain", self.address)
        return text or "no signals are pending"

    def _require_open(self) -> None:
        if self._closed or self.group.closed:
            raise errors.ClosedError("the checked pad is closed")


def checked_pad(group: GroupLike = None, *, sites: Sequence[str] = ()) -> CheckedPad:
    """Create a checked pad, through which kernels of all ranks signal each other. Collective.

    Args:
        group: any argument that `symmem.group` accepts; the default is the world.
        sites: names for call sites in error messages, indexed by the number that kernels pass.

    Raises:
        UnsupportedError: the ranks cannot map each other's memory.
    """
    return CheckedPad(find(group), sites)
