"""Handles of symmetric tensors, for kernels that access other ranks' memory."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._api.barriers import barrier
from symmem._backend.create import load
from symmem._backend.symmetric import allocate
from symmem._device.queued import RANKS, Operation, Queued
from symmem._rank.session import find
from symmem._torch.cuda import aside, own_stream
from symmem._torch.pytorch import pytorch, write_value

if TYPE_CHECKING:
    import torch

    from symmem._api.terms import GroupLike
    from symmem._rank.group import Group


_MAX_VIEWS = 256
"""The maximum number of tensors that a handle caches for `get_buffer` and `get_signal_pad`."""


class Handle:
    """The addresses of a symmetric tensor on all ranks, and a signal pad, for kernels.

    A handle has the members of PyTorch's `_SymmetricMemory` that kernels use. The addresses are
    valid as long as the tensor, the handle and the group exist. Streams with barriers or signals of
    the handle must not be destroyed before it. The default timeout of signals, and of barriers on
    GPUs, is that of the group when the handle was created.

    Attributes:
        rank: this rank's number in the group.
        world_size: the number of ranks.
        device: the device of the tensor.
        buffer_ptrs: the addresses of all ranks' tensors in this process.
        buffer_ptrs_dev: the address of an array of these addresses on the device.
        buffer_size: the size of the tensor in bytes.
        offset: always 0.
        signal_pad_ptrs: the addresses of all ranks' signal pads in this process.
        signal_pad_ptrs_dev: the address of an array of these addresses on the device.
        signal_pad_size: the size of a pad in bytes. All words are 0 when no signal is pending.
        multicast_ptr: always 0, because symmem does not support multicast.
    """

    _queued: Queued | None = None

    def __init__(self, native: Any, tensor: torch.Tensor, group: Group, timeout_ms: int):
        self._native = native
        self._tensor = tensor
        self._group = group
        self._views: dict[tuple[Any, ...], torch.Tensor] = {}
        self.rank, self.world_size = group.rank, group.size
        self.device = tensor.device
        self.buffer_ptrs: list[int] = native.buffers()
        self.signal_pad_ptrs: list[int] = native.pads()
        self.buffer_ptrs_dev: int
        self.signal_pad_ptrs_dev: int
        self.buffer_ptrs_dev, self.signal_pad_ptrs_dev = native.arrays()
        self.buffer_size = tensor.nbytes
        self.offset = 0
        self.signal_pad_size: int = native.pad_bytes()
        self.multicast_ptr = 0
        self._gpu = None if self.device.type == "cpu" else self.device.index
        if self._gpu is not None:
            own_stream(self._gpu)  # now, because `explain` may run during a capture
            if group.size <= RANKS:
                self._queued = Queued(
                    *(group, self._gpu, self.signal_pad_ptrs_dev, self.signal_pad_size),
                    *(native.barrier_offset(), timeout_ms),
                )
        with _lock:
            _handles.add(self)

    def __del__(self) -> None:
        if self._queued is not None and not sys.is_finalizing():
            self._queued.retire()  # before the pad is freed

    def get_buffer(
        self, rank: int, sizes: Sequence[int], dtype: torch.dtype, storage_offset: int = 0
    ) -> torch.Tensor:
        """Return a rank's tensor, or a part of it, as a tensor of this process.

        Args:
            rank: the rank in the group.
            sizes: the shape.
            dtype: the type of the elements.
            storage_offset: the offset of the part, in elements.
        """
        return self._view("buffer", rank, sizes, dtype, storage_offset)

    def _view(
        self, kind: str, rank: int, sizes: Sequence[int], dtype: torch.dtype, offset: int
    ) -> torch.Tensor:
        """Return a tensor of a rank's memory. `kind` is the name of the extension's function."""
        self._require_open()
        # A call of the extension takes several times as long as a look-up.
        key = (kind, rank, tuple(sizes), dtype, offset)
        view: torch.Tensor | None = self._views.get(key)
        if view is None:
            # Autograd cannot save tensors that were created in inference mode.
            with pytorch().module.inference_mode(False):
                view = getattr(self._native, kind)(rank, list(sizes), dtype, offset)
            if len(self._views) == _MAX_VIEWS:
                self._views.clear()
            self._views[key] = view
        return view.detach()

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

        The default `dtype` is torch.uint32.
        """
        kind = pytorch().module.uint32 if dtype is None else dtype
        return self._view("pad", rank, sizes, kind, storage_offset)

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """Wait for all ranks: on GPUs the current stream waits, on the host the caller.

        On the host, all ranks must call barriers in the same order, even on different channels, and
        the timeout is always that of the group.

        Args:
            channel: distinguishes barriers that may be in progress at the same time.
            timeout_ms: the maximum wait in milliseconds; 0 means the timeout of the group.

        Raises:
            TimeoutError: ranks did not arrive in time. On GPUs, later calls of `barrier`,
                `put_signal` and `wait_signal` raise this error and `RankLostError`, and operations
                that are already queued no longer wait.
            RankLostError: the process of a rank has ended.
        """
        self._require_open()
        if self._queued is not None:
            self._queued.queue(Operation.BARRIER, self.rank, channel, timeout_ms)
            return
        if channel < 0:
            raise errors.InvalidError(f"the channel of a barrier must not be negative: {channel}")
        barrier(self._group)

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Signal a rank on a channel, after the rank has consumed the channel's previous signal.

        On GPUs, the current stream waits until then; on the host, the caller does. On GPUs, it
        raises the errors of `barrier`; on the host, `torch.distributed.DistBackendError`.

        Args:
            dst_rank: the rank that waits for the signal.
            channel: distinguishes signals between the same ranks.
            timeout_ms: the maximum wait in milliseconds; 0 means the timeout of the group.
        """
        self._require_open()
        if self._queued is not None:
            self._queued.queue(Operation.PUT, dst_rank, channel, timeout_ms)
        else:
            self._native.put_signal(dst_rank, channel, timeout_ms)

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Wait for a signal from a rank, and consume it. See `put_signal`."""
        self._require_open()
        if self._queued is not None:
            self._queued.queue(Operation.WAIT, src_rank, channel, timeout_ms)
        else:
            self._native.wait_signal(src_rank, channel, timeout_ms)

    @staticmethod
    def stream_write_value32(input: torch.Tensor, offset: int, val: int) -> torch.Tensor:
        """Write a 32-bit word of a tensor on the current stream, after the work queued there.

        Args:
            input: a contiguous tensor of 32-bit integers on a GPU.
            offset: the index of the word.
            val: the value.
        """
        return write_value(input, offset, val)

    def explain(self) -> str:
        """Describe the signals on all ranks' pads that are not taken. Kernels may be waiting.

        A rank that has not taken a signal has not arrived where it is expected. The description
        assumes the layout of PyTorch's signals and barriers, in which the word `n * world_size + r`
        of a pad, 0 or 1, is a signal of rank r in block or channel n. If words have other values,
        it lists them. It is empty if all words are 0. Ranks are numbers in the group.
        """
        self._require_open()
        torch = pytorch().module
        words = self.signal_pad_size // 4
        lines: list[str] = []
        with aside(self._gpu):
            pads = [self.get_signal_pad(r, (words,), torch.int32) for r in range(self.world_size)]
            values = [pad.cpu().tolist() for pad in pads]
        for rank, pad in enumerate(values):
            found = {n: value for n, value in enumerate(pad) if value}
            if any(value != 1 for value in found.values()):
                shown = [f"{n}: {value & 0xFFFFFFFF:#x}" for n, value in list(found.items())[:16]]
                lines.append(f"nonzero words of rank {rank}'s signal pad: {', '.join(shown)}")
                continue
            for source in range(self.world_size):
                blocks = [n // self.world_size for n in found if n % self.world_size == source]
                if blocks:
                    lines.append(
                        f"rank {rank} has not taken the signals of rank {source} in blocks or "
                        f"channels {_spans(blocks)}"
                    )
        return "; ".join(lines)

    def _require_open(self) -> None:
        if self._group.closed:
            raise errors.ClosedError(f"group {self._group.name} of the handle is closed")


_lock = threading.Lock()
_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


def _spans(numbers: list[int]) -> str:
    """Format increasing numbers, with a dash between the ends of a range."""

    def ranges() -> Iterator[str]:
        first = last = numbers[0]
        for number in [*numbers[1:], -1]:
            if number != last + 1:
                yield str(first) if first == last else f"{first}-{last}"
                first = number
            last = number

    return ", ".join(ranges())


def _explain_handles() -> str:
    """Describe the signals on the pads of all handles of this process that are not taken."""
    torch = pytorch().module
    with _lock:
        handles = list(_handles)
    if any(h.device.type != "cpu" for h in handles) and torch.cuda.is_current_stream_capturing():
        return ""  # copies would invalidate the capture
    texts = []
    for handle in handles:
        with contextlib.suppress(RuntimeError):  # such as a closed group
            texts.append(handle.explain())
    return "; ".join(text for text in texts if text)


def handle(tensor: torch.Tensor, group: GroupLike = None) -> Handle:
    """Return the handle of a symmetric tensor, for kernels that access other ranks' memory.

    Collective over the group: all ranks must pass the tensor at the same place in its pool. Every
    call allocates a signal pad, filled with zeros, so create one handle and reuse it. Kernels
    written for handles of PyTorch's symmetric memory run with these handles. symmem sets no timeout
    for waits inside kernels.

    Args:
        tensor: a contiguous tensor that all ranks of the group allocated at the same point of the
            program.
        group: any argument that `symmem.group` accepts; the default is the world.

    Raises:
        InvalidError: the tensor is not contiguous.
        MemoryUseError: the tensor is not in a symmem pool.
        UnsupportedError: the package has no C++ backend for this version of PyTorch, or the ranks
            cannot map each other's memory.
    """
    found = pytorch()
    if not load(found):
        raise errors.UnsupportedError(
            "handles need symmem's C++ backend, which the package does not have for PyTorch "
            f"{found.module.__version__}"
        )
    if not tensor.is_contiguous() or tensor.numel() == 0:
        raise errors.InvalidError("a handle needs a contiguous, non-empty tensor")
    members = find(group)
    allocate(tensor.is_cuda)
    members.library.explain_timeout = _explain_handles
    timeout_ms: int = members.describe()["timeout_ms"]
    native = found.module.ops.symmem_c10d.make_handle(
        tensor,
        members.library.json("symmem_locate", tensor.data_ptr())["pool"],
        members.handle,
        members.rank,
        members.size,
        timeout_ms,
    )
    return Handle(native, tensor, members, timeout_ms)
