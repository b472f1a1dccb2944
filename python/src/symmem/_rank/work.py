"""The works that collectives with async_op=True return."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import Any

from symmem import errors
from symmem._c.library import Library
from symmem._rank.streams import HostStream, HostStreams
from symmem._torch.pytorch import pytorch


class Work:
    """A collective under way: a `torch.distributed.Work`, with the methods of one.

    On GPUs it runs on a side stream, concurrently with the current stream, until `wait` makes the
    current stream wait for it; the caller does not wait. On the host backend the caller does.

    Tensors are kept alive until the collective is done, even if the work is dropped. Symmetric
    tensors are kept until a call waits for it or for a later one of the group. With `record_stream`
    the place of the next tensor would depend on timing, and so differ between ranks. If more than
    64 such works were not waited for, the current stream waits for the older half.
    """

    _output: list[Any]

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Make what follows wait for the collective, and raise its error.

        Args:
            timeout: how long to wait on the host backend. The collective keeps running after a
                `symmem.TimeoutError`. Unless given, symmem.init's bounds the wait for other ranks.
        """
        raise NotImplementedError

    def synchronize(self) -> None:
        """Do what `wait` does."""
        self.wait()

    def block_current_stream(self) -> None:
        """Do what `wait` does."""
        self.wait()

    def is_completed(self) -> bool:
        """Report whether the collective is done or has failed. It does not wait."""
        raise NotImplementedError

    def is_success(self) -> bool:
        """Report whether the collective is done and has not failed."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return the error of the collective, or None while it is under way and if it has none."""
        return None

    def result(self) -> list[Any]:
        """Return the output tensors."""
        return self._output

    def source_rank(self) -> int:
        """Return the rank in the group that a message came from; other works have none."""
        raise errors.InvalidError("only a work of irecv that is done has a source")

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> Any:
        """Return a future of the output tensors, for `then`.

        On the host backend it is done when the collective is; callbacks run on another thread. On
        GPUs the current stream waits, as in `wait`, and the future is done.
        """
        self.wait()
        return _completed(self._output)

    def get_future_result(self) -> Any:
        """Return a future of 0 if the collective succeeds, 1 after a timeout, 2 after a loss."""
        try:
            self.wait()
        except errors.SymmemError as e:
            return _completed(_outcome(e))
        return _completed(0)


def _completed(value: Any) -> Any:
    future = pytorch().module.futures.Future()
    future.set_result(value)
    return future


def _outcome(error: BaseException | None) -> int:
    """Turn an error into a number of torch.distributed's WorkResult."""
    if error is None:
        return 0
    return 1 if isinstance(error, errors.TimeoutError) else 2


class FinishedWork(Work):
    """A collective that is done: what compiled code gets."""

    def __init__(self, output: list[Any]):
        self._output = output

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Report that it is done."""
        return True


class HostWork(Work):
    """A collective on the host backend."""

    def __init__(
        self,
        streams: HostStreams,
        stream: HostStream,
        tensors: list[Any],
        output: list[Any],
        source: Any = None,
    ):
        self._streams = streams
        self._stream = stream
        self._source = source
        self._output = output
        self._queued = streams.add(stream, tensors, source)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the collective has ended, and raise its error."""
        if timeout and not self._queued.is_completed():
            self._wait_at_most(timeout.total_seconds())
        self._queued.end()
        self._streams.covered(self._stream, self._queued.order)
        if self._queued.error is not None:
            raise self._queued.error
        return True

    def _wait_at_most(self, seconds: float) -> None:
        if not self._queued.event.wait_at_most(seconds):
            raise errors.TimeoutError(
                f"the collective was not done within the {seconds} s that wait() was given; it "
                "is still running"
            )

    def is_completed(self) -> bool:
        """Report whether the collective has ended."""
        return self._queued.is_completed()

    def exception(self) -> BaseException | None:
        """Return the error of the collective, if it has ended with one."""
        if not self.is_completed():
            return None
        self._queued.reported = True
        return self._queued.error

    def source_rank(self) -> int:
        """Return the rank in the group that a message came from, once it is there."""
        if self._source is None or not self.is_success():
            return super().source_rank()
        return int(self._source.value)

    def get_future(self) -> Any:
        """Return a future of the output tensors, done when the collective is."""
        return self._future(lambda: self._output, fails=True)

    def get_future_result(self) -> Any:
        """Return a future of 0 if the collective succeeds, 1 after a timeout, 2 after a loss."""
        return self._future(lambda: _outcome(self._queued.error), fails=False)

    def _future(self, value: Callable[[], Any], fails: bool) -> Any:
        future = pytorch().module.futures.Future()

        def complete() -> None:
            if fails and self._queued.error is not None:
                future.set_exception(self._queued.error)
            else:
                future.set_result(value())

        if self.is_completed():
            complete()
        else:
            self._stream.watcher.watch(self._queued, complete)
        return future


MOST_KEPT = 64
"""How many works with symmetric tensors are kept without a wait."""


class SideStream:
    """The CUDA stream that asynchronous collectives of a group run on."""

    def __init__(self, library: Library, group: int, device: int):
        torch = pytorch()
        self._library = library
        self._group = group
        self._cuda = torch.module.cuda
        self.capturing: Callable[[], Any] = torch.is_capturing
        self.stream = self._cuda.Stream(device)
        self.number: int = self.stream.cuda_stream
        self._lock = threading.Lock()
        self._queued = 0
        # Works that may be running, oldest first; and finished ones with symmetric tensors.
        self._unwaited: deque[CudaWork] = deque()
        self._kept: list[CudaWork] = []
        # All with symmetric tensors that no wait covers, but for those of captures, oldest first.
        self._uncovered: deque[CudaWork] = deque()

    def fork(self) -> None:
        """Let the side stream wait for what the current one has queued."""
        self.stream.wait_stream(self._cuda.current_stream())

    def work(self, tensors: list[Any], output: list[Any], source: Any = None) -> CudaWork:
        """Return the work for what was just queued, and release finished works without a wait."""
        # Events of a capture cannot be asked, and asking others may spoil the capture.
        gone = [] if self.capturing() else self._prune()
        made: CudaWork = of_torch(CudaWork)(self, tensors, output, source)
        with self._lock:
            self._queued += 1
            made.order = self._queued
            self._unwaited.append(made)
            many = self._symmetric(made)
        del gone  # Outside of the lock: this may free tensors.
        if many is not None and not self.capturing():
            # Without a wait its tensors would stay forever.
            many.wait()
        return made

    def _symmetric(self, made: CudaWork) -> CudaWork | None:
        """Count a work with symmetric tensors. Of too many, return the middle one, to wait for.

        That depends only on the calls so far, so all ranks agree. The lock is held.
        """
        if made.captured or not self._any_symmetric(made):
            return None
        self._uncovered.append(made)
        return self._uncovered[MOST_KEPT // 2] if len(self._uncovered) > MOST_KEPT else None

    def joined(self, work: CudaWork) -> None:
        """Let go of the tensors that a wait for one collective covers: those of earlier ones."""
        with self._lock:
            gone = [w for w in (*self._kept, *self._unwaited) if w.order <= work.order]
            self._kept = [w for w in self._kept if w.order > work.order]
            self._unwaited = deque(w for w in self._unwaited if w.order > work.order)
            self._uncovered = deque(w for w in self._uncovered if w.order > work.order)
        for one in gone:
            one.tensors = []

    def _prune(self) -> list[CudaWork]:
        """Take finished works, except those with symmetric tensors.

        All ranks must free symmetric tensors at the same point.
        """
        gone: list[CudaWork] = []
        with self._lock:
            # A work of a capture without a wait has invalidated the capture, and is in no graph.
            while self._unwaited and self._unwaited[0].pruned():
                work = self._unwaited.popleft()
                (self._kept if self._any_symmetric(work) else gone).append(work)
        return gone

    def _any_symmetric(self, work: CudaWork) -> bool:
        return any(self._library.in_pool(t.data_ptr()) for t in work.tensors)

    def error(self) -> errors.SymmemError | None:
        """Return the fault that has ended the group."""
        return self._library.group_error(self._group)


class CudaWork(Work):
    """A collective on a side stream."""

    order = 0

    def __init__(self, side: SideStream, tensors: list[Any], output: list[Any], source: Any = None):
        self._side = side
        self._source = source
        self.tensors = tensors
        self._output = output
        self.captured = bool(side.capturing())
        self._event = pytorch().module.cuda.Event()
        self._event.record(side.stream)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Make the current stream wait for the collective."""
        self._event.wait()
        self._side.joined(self)
        return True

    def is_completed(self) -> bool:
        """Report whether the GPU has done the collective."""
        return bool(self._event.query())

    def pruned(self) -> bool:
        """Report whether the tensors are needed no more. No stream captures now."""
        return self.captured or self.is_completed()

    def source_rank(self) -> int:
        """Return the rank in the group that a message came from, once it is there."""
        if self._source is None or not self.is_success():
            return super().source_rank()
        return int(self._source.value)

    def exception(self) -> BaseException | None:
        """Return the fault that has ended the group."""
        return self._side.error()


@lru_cache
def of_torch(kind: type[Any]) -> Any:
    """Derive a kind of work from `torch.distributed.Work`, where PyTorch has that."""
    dist = pytorch().distributed
    if dist is None:
        return kind

    def start(self: Any, *arguments: Any) -> None:
        dist.Work.__init__(self)
        kind.__init__(self, *arguments)

    return type(kind.__name__, (kind, dist.Work), {"__init__": start, "__doc__": kind.__doc__})
