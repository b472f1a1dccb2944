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
    """An asynchronous collective. It is a `torch.distributed.Work` and has the same methods.

    On GPUs, the collective runs on a side stream, concurrently with the current stream. `wait`
    makes the current stream wait for the collective, but does not block the caller. On the host
    backend, `wait` blocks the caller.

    The tensors stay alive until the collective completes, even if the Work is dropped. Symmetric
    tensors stay alive until the program waits for this collective or a later one of the group,
    because with `record_stream` the address of the next tensor would depend on timing, and so
    differ between ranks. When more than 64 collectives with symmetric tensors have not been waited
    for, the current stream waits for the older half.
    """

    _output: list[Any]

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Make subsequent work wait for the collective, and raise the collective's error.

        Args:
            timeout: the maximum wait on the host backend. After a `symmem.TimeoutError`, the
                collective continues to run. By default, the timeout of the group applies.
        """
        raise NotImplementedError

    def synchronize(self) -> None:
        """Do what `wait` does."""
        self.wait()

    def block_current_stream(self) -> None:
        """Do what `wait` does."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the collective has completed or failed, without waiting."""
        raise NotImplementedError

    def is_success(self) -> bool:
        """Return whether the collective has completed successfully."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return the collective's error, or None if it is still running or has succeeded."""
        return None

    def result(self) -> list[Any]:
        """Return the output tensors."""
        return self._output

    def source_rank(self) -> int:
        """Return the sender of a received message, as its rank in the group."""
        raise errors.InvalidError("only the Work of a completed irecv has a source rank")

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> Any:
        """Return a future of the output tensors, for `then`.

        On the host backend, the future completes with the collective, and callbacks run on another
        thread. On GPUs, the future has already completed, and the current stream waits for the
        collective, as in `wait`.
        """
        self.wait()
        return _completed(self._output)

    def get_future_result(self) -> Any:
        """Return a future of 0 for success, 1 for a timeout, or 2 for any other error."""
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
    """Convert an error to a value of torch.distributed's WorkResult."""
    if error is None:
        return 0
    return 1 if isinstance(error, errors.TimeoutError) else 2


class FinishedWork(Work):
    """A collective that has already completed, as in compiled code."""

    def __init__(self, output: list[Any]):
        self._output = output

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return immediately."""
        return True

    def is_completed(self) -> bool:
        """Return True."""
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
        """Wait until the collective completes, and raise its error."""
        if timeout and not self._queued.is_completed():
            self._wait_at_most(timeout.total_seconds())
        self._queued.complete()
        self._streams.release_up_to(self._stream, self._queued.order)
        if self._queued.error is not None:
            raise self._queued.error
        return True

    def _wait_at_most(self, seconds: float) -> None:
        if not self._queued.event.wait_at_most(seconds):
            raise errors.TimeoutError(
                f"the collective did not complete within the {seconds} s passed to wait() and is "
                "still running"
            )

    def is_completed(self) -> bool:
        """Return whether the collective has completed or failed."""
        return self._queued.is_completed()

    def exception(self) -> BaseException | None:
        """Return the error of the collective if it has failed, or None."""
        if not self.is_completed():
            return None
        self._queued.reported = True
        return self._queued.error

    def source_rank(self) -> int:
        """Return the sender of the message, as its rank in the group."""
        if self._source is None or not self.is_success():
            return super().source_rank()
        return int(self._source.value)

    def get_future(self) -> Any:
        """Return a future of the output tensors, which completes with the collective."""
        return self._future(lambda: self._output, fails=True)

    def get_future_result(self) -> Any:
        """Return a future of 0 for success, 1 for a timeout, or 2 for any other error."""
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
"""The maximum number of works with symmetric tensors for which the program has not waited."""


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
        # Works that may be running, oldest first.
        self._unwaited: deque[CudaWork] = deque()
        # Completed works with symmetric tensors.
        self._kept: list[CudaWork] = []
        # The works of both with symmetric tensors, except captured ones, oldest first.
        self._uncovered: deque[CudaWork] = deque()

    def fork(self) -> None:
        """Make the side stream wait for the work queued on the current stream."""
        self.stream.wait_stream(self._cuda.current_stream())

    def work(self, tensors: list[Any], output: list[Any], source: Any = None) -> CudaWork:
        """Return the work for the collective that was just queued, and release completed works."""
        # Events of a capture cannot be queried, and querying others may invalidate the capture.
        released = [] if self.capturing() else self._prune()
        made: CudaWork = of_torch(CudaWork)(self, tensors, output, source)
        with self._lock:
            self._queued += 1
            made.order = self._queued
            self._unwaited.append(made)
            many = self._symmetric(made)
        del released  # Outside the lock, because this may free tensors.
        if many is not None and not self.capturing():
            # Without this wait, programs that never wait would never free their tensors.
            many.wait()
        return made

    def _symmetric(self, made: CudaWork) -> CudaWork | None:
        """Add a work to the uncovered ones if it has symmetric tensors. The caller holds the lock.

        If there are too many, return the middle one, for which the caller must wait. The choice
        depends only on the calls so far, so it is the same on all ranks.
        """
        if made.captured or not self._any_symmetric(made):
            return None
        self._uncovered.append(made)
        return self._uncovered[MOST_KEPT // 2] if len(self._uncovered) > MOST_KEPT else None

    def release_up_to(self, work: CudaWork) -> None:
        """Release the tensors of a work that was waited for, and of all works before it."""
        with self._lock:
            released = [w for w in (*self._kept, *self._unwaited) if w.order <= work.order]
            self._kept = [w for w in self._kept if w.order > work.order]
            self._unwaited = deque(w for w in self._unwaited if w.order > work.order)
            self._uncovered = deque(w for w in self._uncovered if w.order > work.order)
        for one in released:
            one.tensors = []

    def _prune(self) -> list[CudaWork]:
        """Remove completed works and return them, except those with symmetric tensors.

        All ranks must free symmetric tensors at the same point.
        """
        released: list[CudaWork] = []
        with self._lock:
            # A capture without a wait for its works was invalid, so they are not in any graph.
            while self._unwaited and self._unwaited[0].is_prunable():
                work = self._unwaited.popleft()
                (self._kept if self._any_symmetric(work) else released).append(work)
        return released

    def _any_symmetric(self, work: CudaWork) -> bool:
        return any(self._library.in_pool(t.data_ptr()) for t in work.tensors)

    def error(self) -> errors.SymmemError | None:
        """Return the fault that made the group fail, or None."""
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
        self._side.release_up_to(self)
        return True

    def is_completed(self) -> bool:
        """Return whether the GPU has completed the collective."""
        return bool(self._event.query())

    def is_prunable(self) -> bool:
        """Return whether the tensors are no longer needed. No stream may be capturing."""
        return self.captured or self.is_completed()

    def source_rank(self) -> int:
        """Return the sender of the message, as its rank in the group."""
        if self._source is None or not self.is_success():
            return super().source_rank()
        return int(self._source.value)

    def exception(self) -> BaseException | None:
        """Return the fault that made the group fail, or None."""
        return self._side.error()


@lru_cache
def of_torch(kind: type[Any]) -> Any:
    """Return a subclass of `kind` and `torch.distributed.Work`, or `kind` if there is no Work."""
    dist = pytorch().distributed
    if dist is None:
        return kind

    def start(self: Any, *arguments: Any) -> None:
        dist.Work.__init__(self)
        kind.__init__(self, *arguments)

    return type(kind.__name__, (kind, dist.Work), {"__init__": start, "__doc__": kind.__doc__})
