"""Measures the cost of a guard after each NCCL kernel: a wait for a word, or a kernel.

One rank is enough. A guard would mark the output of an aborted call. The work is queued behind a
sleeping kernel, so that the time of the host is not measured.
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable

import torch

CALLS, ROUNDS = 400, 15
FLUSH_NOTHING = 0  # CU_STREAM_WAIT_VALUE_GEQ, no flush


def stream_time(call: Callable[[], None]) -> float:
    """Return a call's median time on the stream over several rounds, in microseconds."""
    times = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(40_000_000)
        begin.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end) / CALLS)
    return statistics.median(times)


def waits(word: torch.Tensor) -> Callable[[], None]:
    """Make the stream wait for a word that is already set."""
    wait = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2
    wait.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint]
    handle, at = torch.cuda.current_stream().cuda_stream, word.data_ptr()

    def call() -> None:
        if wait(handle, at, 0, FLUSH_NOTHING) != 0:
            raise RuntimeError("cuStreamWaitValue32 failed")

    return call


def main() -> None:
    """Print the time of each guard after a small copy."""
    source = torch.ones(2048, device="cuda")
    output = torch.empty_like(source)
    word = torch.zeros(1, dtype=torch.int32, device="cuda")
    pinned = torch.zeros(1, dtype=torch.int32).pin_memory()
    with torch.cuda.stream(torch.cuda.Stream()):
        work = lambda: torch.add(source, 1.0, out=output)  # noqa: E731
        guards = {
            "nothing": lambda: None,
            "a wait for a word of the device": waits(word),
            "a wait for a word of the host": waits(pinned),
            "a kernel that looks at a word": lambda: word.bitwise_and_(1),
        }
        for name, guard in guards.items():

            def guarded(guard: Callable[[], None] = guard) -> None:
                work()
                guard()

            guarded()
            torch.cuda.synchronize()
            print(f"a kernel, then {name}: {stream_time(guarded):.2f} us of the stream", flush=True)


main()
