"""Measures ncclCommSuspend alone, and checkpoints of a suspended process by the driver.

suspend.py nccl LIBNCCL [BYTES]     time of ncclCommSuspend and ncclCommResume on two GPUs
suspend.py checkpoint SYMMEM_TEST   checkpoints of a process with one and with two ranks
"""

import ctypes
import os
import subprocess
import sys
import threading
import time

cuda = ctypes.CDLL("libcuda.so.1")


def check(result: int, call: str) -> None:
    """Raises an error unless a call has succeeded."""
    if result != 0:
        raise RuntimeError(f"{call} returned {result}")


def free_bytes() -> int:
    """Returns the free bytes of the current GPU."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "cuMemGetInfo")
    return free.value


def measure_nccl(path: str, cycles: int = 20) -> None:
    """Times cycles of ncclCommSuspend and ncclCommResume between two GPUs of this process."""
    nccl = ctypes.CDLL(path)
    version = ctypes.c_int()
    check(nccl.ncclGetVersion(ctypes.byref(version)), "ncclGetVersion")
    print(f"NCCL {version.value}")
    if not hasattr(nccl, "ncclCommSuspend"):
        print("it has no ncclCommSuspend")
        return
    check(cuda.cuInit(0), "cuInit")
    identity = (ctypes.c_char * 128)()
    check(nccl.ncclGetUniqueId(ctypes.byref(identity)), "ncclGetUniqueId")

    class Identity(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * 128)]

    unique = Identity.from_buffer_copy(identity)
    times: list[list[float]] = [[], []]
    barrier = threading.Barrier(2)

    def run(rank: int) -> None:
        device, context = ctypes.c_int(), ctypes.c_void_p()
        check(cuda.cuDeviceGet(ctypes.byref(device), rank), "cuDeviceGet")
        check(
            cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain"
        )
        check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
        comm, memory = ctypes.c_void_p(), ctypes.c_uint64()
        init = nccl.ncclCommInitRank
        init.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, Identity, ctypes.c_int]
        check(init(ctypes.byref(comm), 2, unique, rank), "ncclCommInitRank")
        check(cuda.cuMemAlloc_v2(ctypes.byref(memory), 1 << 20), "cuMemAlloc")
        reduce = nccl.ncclAllReduce
        reduce.argtypes = [
            ctypes.c_uint64,
            ctypes.c_uint64,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        for cycle in range(cycles):
            check(reduce(memory.value, memory.value, 1 << 18, 7, 0, comm, None), "ncclAllReduce")
            check(cuda.cuCtxSynchronize(), "cuCtxSynchronize")
            before = free_bytes()
            barrier.wait(60)
            begin = time.perf_counter()
            check(nccl.ncclCommSuspend(comm, 1), "ncclCommSuspend")
            middle = time.perf_counter()
            freed = free_bytes() - before
            barrier.wait(60)
            resumed = time.perf_counter()
            check(nccl.ncclCommResume(comm), "ncclCommResume")
            times[rank].append(middle - begin + time.perf_counter() - resumed)
            if cycle == 0 and rank == 0:
                print(f"freed {freed} bytes of the GPU")

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    if len(times[0]) == cycles:
        ordered = sorted(times[0])
        print(
            f"ncclCommSuspend and ncclCommResume: median {1e3 * ordered[cycles // 2]:.2f} ms, "
            f"first {1e3 * times[0][0]:.2f} ms"
        )
    else:
        print(f"only {len(times[0])} of {cycles} cycles ended")
    sys.stdout.flush()
    os._exit(0 if len(times[0]) == cycles else 1)


def checkpoint(program: str, ranks: int) -> bool:
    """Makes checkpoints of a process with suspended memory, and restores it."""
    if not hasattr(cuda, "cuCheckpointProcessLock"):
        print("the driver has no cuCheckpointProcessLock")
        return True
    check(cuda.cuInit(0), "cuInit")
    child = subprocess.Popen(
        [program, "-test.run", "^TestCheckpointedProcess$", "-test.timeout", "40s"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"SYMMEM_TEST_CHECKPOINT": str(ranks)},
    )
    assert child.stdin
    assert child.stdout
    timer = threading.Timer(45, child.kill)
    timer.start()
    output, checkpoints = [], 0
    try:
        for line in child.stdout:
            output.append(line)
            if line.strip() != "ready":
                continue
            took = []
            for step in ("Lock", "Checkpoint", "Restore", "Unlock"):
                begin = time.perf_counter()
                result = getattr(cuda, "cuCheckpointProcess" + step)(child.pid, None)
                took.append(f"{step} {1e3 * (time.perf_counter() - begin):.1f} ms")
                if result != 0:
                    took[-1] += f" returned {result}"
                    cuda.cuCheckpointProcessUnlock(child.pid, None)
                    break
            else:
                checkpoints += 1
            print(f"{ranks} ranks: " + ", ".join(took))
            child.stdin.write("\n")
            child.stdin.flush()
    finally:
        timer.cancel()
    code = child.wait(10)
    if code != 0:
        print("".join(output[-15:]))
    outcome = f"correct after {checkpoints} checkpoints" if code == 0 else "FAILED"
    print(f"{ranks} ranks: {outcome}")
    if checkpoints == 0:
        print("SKIPPED, not supported here: the driver checkpoints no process")
    return code == 0


if __name__ == "__main__":
    if sys.argv[1] == "nccl":
        measure_nccl(sys.argv[2])
    else:
        results = [checkpoint(sys.argv[2], ranks) for ranks in (1, 2)]
        sys.exit(0 if all(results) else 1)
