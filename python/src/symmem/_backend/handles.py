"""Handles of symmetric tensors, for kernels that access the memory of other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._backend.create import load
from symmem._backend.symmetric import allocate
from symmem._rank.session import find
from symmem._torch.pytorch import pytorch

if TYPE_CHECKING:
    import torch

    from symmem._api.terms import GroupLike


class Handle:
    """Gives a kernel the addresses of a symmetric tensor on all ranks, and a signal pad.

    It has the members of PyTorch's `_SymmetricMemory` that kernels use. The addresses are valid
    while the tensor, the handle and the group are.

    Attributes:
        rank: this rank's number in the group.
        world_size: the number of ranks.
        device: where the tensor is.
        buffer_ptrs: the addresses of all ranks' tensors in this process.
        buffer_ptrs_dev: the address of an array of these addresses, on the device.
        buffer_size: the size of the tensor in bytes.
        offset: always 0.
        signal_pad_ptrs: the addresses of all ranks' signal pads in this process.
        signal_pad_ptrs_dev: the address of an array of these addresses, on the device.
        signal_pad_size: the size of a pad in bytes. Each word is 0 when no signal is in progress.
        multicast_ptr: always 0: symmem has no multicast.
    """

    def __init__(self, made: Any, tensor: torch.Tensor, rank: int, size: int):
        self._made = made
        self._tensor = tensor
        self.rank, self.world_size = rank, size
        self.device = tensor.device
        self.buffer_ptrs: list[int] = made.buffers()
        self.signal_pad_ptrs: list[int] = made.pads()
        self.buffer_ptrs_dev: int
        self.signal_pad_ptrs_dev: int
        self.buffer_ptrs_dev, self.signal_pad_ptrs_dev = made.arrays()
        self.buffer_size = tensor.nbytes
        self.offset = 0
        self.signal_pad_size: int = made.pad_bytes()
        self.multicast_ptr = 0

    def get_buffer(
        self, rank: int, sizes: Sequence[int], dtype: torch.dtype, storage_offset: int = 0
    ) -> torch.Tensor:
        """Return a rank's tensor, or a part of it, as a tensor of this process.

        Args:
            rank: the rank in the group.
            sizes: the shape.
            dtype: the type of the elements.
            storage_offset: where the part begins, in elements.
        """
        found: torch.Tensor = self._made.buffer(rank, list(sizes), dtype, storage_offset)
        return found

    def get_remote_tensor(
        self, peer: int, sizes: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        """Return the beginning of a rank's tensor as a tensor of this process."""
        return self.get_buffer(peer, sizes, dtype)

    def get_signal_pad(
        self,
        rank: int,
        sizes: Sequence[int] = (),
        dtype: torch.dtype | None = None,
        storage_offset: int = 0,
    ) -> torch.Tensor:
        """Return a rank's signal pad, or a part of it, as a tensor of this process.

        The elements are unsigned 32-bit numbers unless `dtype` is given.
        """
        kind = pytorch().module.uint32 if dtype is None else dtype
        found: torch.Tensor = self._made.pad(rank, list(sizes), kind, storage_offset)
        return found

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """Wait for all ranks: on GPUs the current stream waits, on the host the caller.

        The wait ends with the group's timeout. All ranks must call barriers in the same order,
        whatever the channel.
        """
        self._made.barrier(channel)

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Signal a rank on a channel. The caller waits until the rank has taken the previous one.

        On GPUs the caller first waits for the current stream, and the signal is ordered by it.

        Args:
            dst_rank: the rank that waits for the signal.
            channel: distinguishes signals between the same ranks.
            timeout_ms: the longest wait; 0 is the timeout of the group.
        """
        self._made.put_signal(dst_rank, channel, timeout_ms)

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Wait on the host for a signal of a rank, and take it.

        `DistBackendError` of torch.distributed, after the timeout, names the rank.
        """
        self._made.wait_signal(src_rank, channel, timeout_ms)


def handle(tensor: torch.Tensor, group: GroupLike = None) -> Handle:
    """Return the handle of a symmetric tensor, for kernels that access other ranks' memory.

    Collective over the group: all ranks pass the tensor at the same place of its pool. Every handle
    has a new signal pad, which is zero: make one handle, and use it again. A kernel written for
    handles of PyTorch's symmetric memory runs with these. Its waits are its own: they have no
    deadline.

    Args:
        tensor: contiguous, allocated at the same point of the program on all ranks of the group.
        group: any argument that `symmem.group` accepts; the default is the world.

    Raises:
        InvalidError: the tensor is not contiguous.
        ForeignError: the tensor is not in a pool of symmem.
        UnsupportedError: there is no part in C++ for this version of PyTorch, or ranks cannot map
            each other's memory.
    """
    found = pytorch()
    if not load(found):
        raise errors.UnsupportedError(
            "handles need symmem's part in C++, which there is not for PyTorch "
            f"{found.module.__version__}"
        )
    if not tensor.is_contiguous() or tensor.numel() == 0:
        raise errors.InvalidError("a handle needs a contiguous tensor with elements")
    members = find(group)
    allocate(tensor.is_cuda)
    made = found.module.ops.symmem_c10d.make_handle(
        tensor,
        members.library.json("symmem_locate", tensor.data_ptr())["pool"],
        members.handle,
        members.rank,
        members.size,
        members.describe()["timeout_ms"],
    )
    return Handle(made, tensor, members.rank, members.size)
