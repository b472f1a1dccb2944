"""A process group in Python, for PyTorch versions for which the package has no C++ backend.

It is slower than the C++ backend, and it cannot be combined with another backend, as in
"cpu:symmem,cuda:nccl".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from symmem import errors
from symmem._api import barriers, collectives, lists, messages, rooted
from symmem._backend import memory_pools
from symmem._backend.joining import close_or_warn
from symmem._rank.group import Group
from symmem._rank.work import Work

if TYPE_CHECKING:

    class BaseWork:
        """Stands for PyTorch's class, whose signatures differ between versions."""

    class BaseGroup:
        """Stands for PyTorch's class, whose signatures differ between versions."""

else:
    BaseWork, BaseGroup = dist.Work, dist.ProcessGroup

Tensors = Sequence[torch.Tensor]


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Translate symmem's errors to those that PyTorch's backends raise."""
    try:
        yield
    except errors.UnsupportedError as e:
        raise NotImplementedError(str(e)) from e
    except errors.InvalidError:
        raise
    except errors.SymmemError as e:
        late = "Timed out waiting for other ranks: " if isinstance(e, TimeoutError) else ""
        raise dist.DistBackendError(f"symmem: {late}{e}") from e


class GroupWork(BaseWork):
    """The work of one or more operations."""

    def __init__(self, works: list[Work], outputs: list[torch.Tensor]):
        super().__init__()
        self._works, self._outputs = works, outputs

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the operations. A timeout of 0 means no timeout."""
        with _translated_errors():
            for work in self._works:
                work.wait(timeout or None)
        return True

    def synchronize(self) -> None:
        """Wait for the operations."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether all operations have completed or failed."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Return whether all operations have completed successfully."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        """Return the first error of the operations, or None."""
        return next((e for w in self._works if (e := w.exception()) is not None), None)

    def result(self) -> list[torch.Tensor]:
        """Return the outputs."""
        return self._outputs

    def source_rank(self) -> int:
        """Return the sender of a received message, as its rank in the group."""
        return self._works[0].source_rank()

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Return a future of the outputs."""
        if len(self._works) == 1:
            return self._works[0].get_future()
        self.wait()
        future: Any = torch.futures.Future()
        future.set_result(self._outputs)
        return future


class PythonGroup(BaseGroup):
    """A process group that wraps a symmem group.

    Args:
        group: the symmem group.
        close: closes the group; called once.
        options: PyTorch's `_DistributedBackendOptions`.
    """

    _device_types: tuple[torch.device, ...] = ()

    def __init__(self, group: Group, close: Callable[[], None], options: Any):
        BaseGroup.__init__(self, group.rank, group.size)  # type: ignore[call-arg]
        self._group = group
        self._close: Callable[[], None] | None = close
        self._sequence = 0
        self._name: str = options.group_id
        self.options = SimpleNamespace(backend="symmem", _timeout=options.timeout)

    def _start(self, outputs: Tensors, *calls: Callable[[], Work | None]) -> GroupWork:
        """Make calls, and return the work of those that are asynchronous."""
        self._sequence += 1
        with _translated_errors():
            works = [work for call in calls if (work := call()) is not None]
        return GroupWork(works, list(outputs))

    def name(self) -> str:
        """Return the name of the backend."""
        return "symmem"

    getBackendName = name  # noqa: N815 - PyTorch calls it.

    @property
    def group_name(self) -> str:
        """The name that PyTorch gave the group."""
        return self._name

    def _get_backend(self, device: torch.device) -> PythonGroup:
        return self

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._group.set_timeout(timeout.total_seconds())
        self.options = SimpleNamespace(backend="symmem", _timeout=timeout)

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def register_mem_pool(self, pool: torch.cuda.MemPool, symm: bool = False) -> None:
        """Register the memory of a MemPool. See `memory_pools.register_mem_pool`."""
        memory_pools.register(pool, self._group.handle)

    def deregister_mem_pool(self, pool: torch.cuda.MemPool) -> None:
        """Do nothing: memory is deregistered when it is unmapped or the group is closed."""

    def shutdown(self) -> None:
        """Close the group."""
        close, self._close = self._close, None
        if close is not None:
            close_or_warn(close)

    def abort(self) -> None:
        """Make the group fail on all ranks, and close it."""
        if self._close is not None:
            self._group.abort()
            self.shutdown()

    def broadcast(self, tensors: Any, options: Any = None) -> GroupWork:
        """Copy one rank's tensor to all ranks."""
        tensors, root = _listed(tensors), getattr(options, "rootRank", options or 0)
        return self._start(
            tensors,
            lambda: collectives.broadcast(tensors[0], None, self._group, True, root),
        )

    def allreduce(self, tensors: Any, options: Any = None) -> GroupWork:
        """Reduce tensors across all ranks, one after the other.

        Args:
            tensors: a tensor or a list of tensors.
            options: PyTorch's options or a ReduceOp.
        """
        tensors, op = _listed(tensors), getattr(options, "reduceOp", options)
        return self._start(
            tensors,
            *(lambda t=t: collectives.all_reduce(t, op, self._group, True) for t in tensors),
        )

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, options: Any) -> GroupWork:
        """Reduce a tensor to one rank."""
        op, root = options.reduceOp, options.rootRank
        return self._start(
            tensors, lambda: rooted.reduce(tensors[0], None, op, self._group, True, root)
        )

    def _allgather_base(self, output: Any, tensor: Any, options: Any = None) -> GroupWork:
        return self.allgather_into_tensor_coalesced([output], [tensor])

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, options: Any = None
    ) -> GroupWork:
        """Gather each tensor from all ranks into one tensor."""
        gather = collectives.all_gather_into_tensor
        pairs = zip(outputs, inputs, strict=True)
        return self._start(
            outputs, *(lambda o=o, i=i: gather(o, i, self._group, True) for o, i in pairs)
        )

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def allgather(
        self, outputs: Sequence[Tensors], inputs: Tensors, options: Any = None
    ) -> GroupWork:
        """Gather each tensor from all ranks into a list."""
        calls = [
            lambda o=list(o), i=i: lists.all_gather(o, i.detach(), self._group, True)
            for o, i in zip(outputs, inputs, strict=True)
        ]
        return self._start([t for list_ in outputs for t in list_], *calls)

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, options: Any = None
    ) -> GroupWork:
        """Gather tensors from all ranks. `outputs` has a list for each rank."""
        return self.allgather([list(parts) for parts in zip(*outputs, strict=True)], inputs)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, options: Any) -> GroupWork:
        """Gather a tensor from all ranks into a list on one rank."""
        parts, root = list(outputs[0]) if outputs else None, options.rootRank
        return self._start(
            parts or [], lambda: rooted.gather(inputs[0], parts, None, self._group, False, root)
        )

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], options: Any) -> GroupWork:
        """Send each rank one tensor of the root's list."""
        parts, root = list(inputs[0]) if inputs else None, options.rootRank
        return self._start(
            outputs, lambda: rooted.scatter(outputs[0], parts, None, self._group, False, root)
        )

    def _reduce_scatter_base(self, output: Any, tensor: Any, options: Any) -> GroupWork:
        return self.reduce_scatter_tensor_coalesced([output], [tensor], options)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, options: Any
    ) -> GroupWork:
        """Reduce tensors across all ranks, and store this rank's part of each."""
        op, pairs = options.reduceOp, zip(outputs, inputs, strict=True)
        scatter = collectives.reduce_scatter_tensor
        return self._start(
            outputs, *(lambda o=o, i=i: scatter(o, i, op, self._group, True) for o, i in pairs)
        )

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], options: Any
    ) -> GroupWork:
        """Reduce a list of tensors across all ranks, and store this rank's tensor."""
        op, parts = options.reduceOp, [i.detach() for i in inputs[0]]
        return self._start(
            outputs, lambda: lists.reduce_scatter(outputs[0], parts, op, self._group, True)
        )

    def alltoall_base(
        self, output: Any, tensor: Any, received: list[int], sent: list[int], options: Any = None
    ) -> GroupWork:
        """Exchange rows with all ranks."""
        return self._start(
            [output],
            lambda: collectives.all_to_all_single(
                *(output, tensor, received or None, sent or None), self._group, True
            ),
        )

    all_to_all_single = alltoall_base

    def alltoall(self, outputs: Tensors, inputs: Tensors, options: Any = None) -> GroupWork:
        """Exchange tensors with all ranks."""
        parts = list(outputs), [i.detach() for i in inputs]
        return self._start(outputs, lambda: lists.all_to_all(*parts, self._group, True))

    def send(self, tensors: Tensors, peer: int, tag: int) -> GroupWork:
        """Send a tensor to a rank."""
        return self._start(
            tensors, lambda: messages.isend(tensors[0], None, self._group, tag, peer)
        )

    def recv(self, tensors: Tensors, peer: int | None, tag: int) -> GroupWork:
        """Receive a tensor from a rank."""
        return self._start(
            tensors, lambda: messages.irecv(tensors[0], None, self._group, tag, peer)
        )

    def recv_anysource(self, tensors: Tensors, tag: int) -> GroupWork:
        """Receive a tensor from any rank."""
        return self.recv(tensors, None, tag)

    def barrier(self, opts: Any = None) -> GroupWork:
        """Wait until all ranks have arrived."""
        return self._start([], lambda: barriers.barrier(self._group, True))


def _listed(tensors: Any) -> Tensors:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
