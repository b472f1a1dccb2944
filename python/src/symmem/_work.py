"""What collectives with async_op=True return."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from symmem._torch import pytorch

if TYPE_CHECKING:
    from symmem._runtime import Runtime


class Work:
    """A collective under way, with the methods of `torch.distributed.Work` that programs use.

    On GPUs it runs on a stream of its own, beside what the current stream does, until `wait` makes
    the current stream wait for it; the processor does not. On the host backend `wait` waits.

    Tensors are kept alive until a `wait` that covers them, rather than by `record_stream`: when
    PyTorch's allocator gets such blocks back depends on the clock, and so on the rank.
    """

    def __init__(self, tensors: tuple[Any, ...], output: list[Any]):
        self._tensors = tensors
        self._output = output
        self._done = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Make what follows wait for the collective; the timeout is the one of symmem.init."""
        if not self._done:
            self._wait()
            self._done = True
            self._tensors = ()
        return True

    def synchronize(self) -> None:
        """Do what `wait` does."""
        self.wait()

    def is_completed(self) -> bool:
        """Tell whether the collective is done."""
        return self._done

    def is_success(self) -> bool:
        """Tell whether the collective is done; faults are raised by the calls that meet them."""
        return self.is_completed()

    def result(self) -> list[Any]:
        """Return the output tensors."""
        return self._output

    def get_future(self) -> Any:
        """Return a future of the output tensors, for `then`."""
        self.wait()
        future = pytorch().module.futures.Future()
        future.set_result(self._output)
        return future

    def _wait(self) -> None:
        raise NotImplementedError


class HostWork(Work):
    """A collective on the host backend."""

    def __init__(self, runtime: Runtime, tensors: tuple[Any, ...], output: list[Any]):
        super().__init__(tensors, output)
        self._runtime = runtime

    def _wait(self) -> None:
        self._runtime.library.call("symmem_stream_synchronize", 0)


class SideStream:
    """The stream beside the current one that asynchronous collectives of a group run on."""

    def __init__(self, device: int):
        self._cuda = pytorch().module.cuda
        self.stream = self._cuda.Stream(device)
        self.number: int = self.stream.cuda_stream
        self._unwaited: list[CudaWork] = []

    def fork(self) -> None:
        """Let the side stream wait for what the current one has queued."""
        self.stream.wait_stream(self._cuda.current_stream())

    def work(self, tensors: tuple[Any, ...], output: list[Any]) -> CudaWork:
        """Mark what has just been queued."""
        made = CudaWork(self, tensors, output)
        self._unwaited.append(made)
        return made

    def joined(self, work: CudaWork) -> None:
        """Let go of the tensors that a wait for one collective covers: those of earlier ones."""
        if work in self._unwaited:
            until = self._unwaited.index(work) + 1
            for earlier in self._unwaited[:until]:
                earlier.release()
            del self._unwaited[:until]


class CudaWork(Work):
    """A collective on a side stream."""

    def __init__(self, side: SideStream, tensors: tuple[Any, ...], output: list[Any]):
        super().__init__(tensors, output)
        self._side = side
        self._event = pytorch().module.cuda.Event()
        self._event.record(side.stream)

    def is_completed(self) -> bool:
        """Tell whether the GPU has done the collective."""
        return bool(self._event.query())

    def release(self) -> None:
        """Let go of the tensors."""
        self._tensors = ()

    def _wait(self) -> None:
        self._event.wait()
        self._side.joined(self)
