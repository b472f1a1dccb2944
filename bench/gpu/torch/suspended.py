"""Suspends a group of processes, and makes checkpoints of them with the CUDA driver.

suspended.py           tests that graphs are right after 100 cycles and after a checkpoint
suspended.py PID       makes a checkpoint of a process and restores it, and prints the times
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

STEPS = ("Lock", "Checkpoint", "Restore", "Unlock")
CHECKPOINT_LIMIT = 15
"""Seconds within which a checkpoint of one process has to be made and restored."""


def checkpoint(pid: int) -> None:
    """Make a checkpoint of another process, and restore it."""
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuInit(0)
    for step in STEPS:
        print(step.lower(), end=" ", flush=True)
        begin = time.perf_counter()
        code = getattr(cuda, f"cuCheckpointProcess{step}")(pid, None)
        print(f"{1e3 * (time.perf_counter() - begin):.0f} ms", end=", ", flush=True)
        if code:
            cuda.cuCheckpointProcessUnlock(pid, None)
            sys.exit(f"CUDA error {code}")


def checkpoint_this_process() -> tuple[bool, str]:
    """Let a child checkpoint and restore this process. Return whether it did, and the times."""
    with tempfile.TemporaryFile("w+") as output:
        command = [sys.executable, __file__, str(os.getpid())]
        child = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            good = child.wait(CHECKPOINT_LIMIT) == 0
        except subprocess.TimeoutExpired:
            good = False
            child.kill()  # no wait, because the driver might keep it alive
        output.seek(0)
        return good, output.read().strip(" ,\n")


if len(sys.argv) > 1:
    checkpoint(int(sys.argv[1]))
    sys.exit()

import common  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from common import DEVICE, RANK, SIZE, attempt, say, settle, verdict  # noqa: E402

import symmem  # noqa: E402


def free() -> int:
    """Return the free memory of the GPU."""
    settle()
    found: int = torch.cuda.mem_get_info(DEVICE)[0]
    settle()
    return found


def main() -> None:
    """Run all tests."""
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    common._control = dist.group.WORLD
    symmem.init(backend="nccl", timeout=20)
    with symmem.use():
        x = torch.zeros(16 << 20, device=DEVICE)
    few = x[:1000]
    symmem.all_reduce(few)
    graph = common.capture(lambda: symmem.all_reduce(few))

    def replays(value: int) -> bool:
        few.fill_(value + RANK)
        graph.replay()
        return bool((few == SIZE * value + SIZE * (SIZE - 1) // 2).all())

    def memory() -> None:
        before = free()
        released = symmem.suspend()
        freed = free() - before
        symmem.resume()
        figures = f"{freed} bytes are free, and {released} were released"
        verdict("95% of the bytes are free", freed >= 0.95 * released > 0, figures)

    def cycles() -> None:
        good = replays(1)
        begin = time.perf_counter()
        for cycle in range(100):
            symmem.suspend()
            symmem.resume()
            good = good and replays(cycle)
        each = (time.perf_counter() - begin) * 10
        verdict("a graph is right after each of 100 cycles", good, f"{each:.1f} ms a cycle")

    def checkpoints() -> None:
        if not hasattr(ctypes.CDLL("libcuda.so.1"), "cuCheckpointProcessLock"):
            say("# SKIPPED, not supported here: the driver has no cuCheckpointProcessLock")
            return
        for keep in (False, True):
            x.fill_(7)
            symmem.suspend(keep=keep)
            settle()
            if not verdict(f"checkpoints, keep={keep}", *checkpoint_this_process()):
                sys.stdout.flush()
                os._exit(1)  # the driver might block all calls of CUDA
            symmem.resume()
            good = bool((x == 7 * keep).all()) and replays(3)
            verdict(f"tensors and graphs after checkpoints, keep={keep}", good)

    for part in (memory, cycles, checkpoints):
        attempt(part.__name__, part)
    common.leave()


if __name__ == "__main__":
    main()
