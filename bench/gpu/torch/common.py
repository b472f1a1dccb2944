"""Functions shared by the programs in this folder: opening, verdicts and timing."""

from __future__ import annotations

import ctypes
import json
import os
import random
import statistics
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import symmem

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
# If NCCL_MULTI_RANK_GPU_ENABLE is 1, ranks may share a GPU.
GPUS = torch.cuda.device_count()
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % GPUS)
SUM = SIZE * (SIZE + 1) / 2
MIB = 1 << 20

failed = False
_control: Any = None
_parts = 0
_rounds = 0


def start(**options: Any) -> symmem.Group:
    """Open PyTorch's NCCL process group and symmem over it."""
    distributed()
    return symmem.init(**{"backend": "nccl", "timeout": 15, **options})


def distributed() -> None:
    """Open PyTorch's NCCL process group and one of gloo for verdicts."""
    global _control
    torch.cuda.set_device(DEVICE)
    wait = timedelta(seconds=30)
    dist.init_process_group("nccl", device_id=DEVICE, timeout=wait)
    _control = dist.new_group(backend="gloo", timeout=wait)


def needs_gpus(what: str) -> None:
    """Exit if ranks share GPUs, because the program measures times."""
    if int(os.environ["LOCAL_WORLD_SIZE"]) > GPUS:
        say(f"SKIP, not supported here: {what} need a GPU for each of {SIZE} ranks, not {GPUS}")
        sys.exit(0)


def nccl_version() -> tuple[int, int, int]:
    """Return the version of the loaded NCCL, not of the one that PyTorch was built with."""
    version = ctypes.c_int()
    ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version))
    return version.value // 10000, version.value // 100 % 100, version.value % 100


def attachable() -> bool:
    """Return whether NCCL's kernels on windows wait for earlier work on the stream.

    If they do not, symmem refuses to attach by default (docs/reference/nccl-defects.md).
    """
    if os.environ.get("SYMMEM_ATTACH_EARLY_START") == "1":
        return True
    early = (2, 28, 3) <= nccl_version() < (2, 30, 7)
    return not early or torch.cuda.get_device_capability(DEVICE)[0] < 9


def say(*words: object) -> None:
    """Print on rank 0."""
    if RANK == 0:
        print(*words, flush=True)


def record(name: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write a result file (docs/reference/json.md) on rank 0, if RESULTS names a folder."""
    folder = os.environ.get("RESULTS")
    if RANK != 0 or not folder:
        return
    libraries = f"NCCL {'.'.join(map(str, nccl_version()))}, PyTorch {torch.__version__}"
    run = {"libraries": libraries}
    run |= {key.lower(): os.environ[key] for key in ("MACHINE", "DATE", "COMMIT", "COMMAND")}
    result = {"runs": [run], "columns": columns, "rows": rows}
    (Path(folder) / f"{name}.json").write_text(json.dumps(result))


def gather(value: Any) -> list[Any]:
    """Exchange a value between all ranks through the store of torch.distributed."""
    global _rounds
    _rounds += 1
    store = dist.distributed_c10d._get_default_store()
    keys = [f"gather/{_rounds}/{rank}" for rank in range(SIZE)]
    store.set(keys[RANK], json.dumps(value))
    store.wait(keys, timedelta(seconds=30))
    return [json.loads(store.get(key).decode()) for key in keys]


PROCESSORS = 8
"""The number of processors on which a measurement is repeated."""


def alone(measure: Callable[[], Sequence[float]]) -> Sequence[float]:
    """Measure times on one rank at a time and on several processors, and return the minimum.

    A processor of a virtual machine is one of two threads of a core and runs at half the speed
    while the other is busy. All returned times are from one processor. The other ranks sleep
    during the measurement.
    """
    mine: Sequence[float] = ()
    for rank in range(SIZE):
        if rank == RANK:
            mine = min(on_processors(measure), key=sum)
        gather(rank)
    return mine


def on_processors(measure: Callable[[], Sequence[float]]) -> list[Sequence[float]]:
    """Measure on some of this rank's processors."""
    allowed, found = os.sched_getaffinity(0), []
    try:
        for processor in random.sample(sorted(allowed), min(PROCESSORS, len(allowed))):
            os.sched_setaffinity(0, {processor})
            found.append(measure())
    finally:
        os.sched_setaffinity(0, allowed)
    return found


def verdict(name: str, ok: bool, figures: object = "") -> bool:
    """Print PASS or FAIL and rank 0's figures. A part passes only if it passes on all ranks."""
    global failed
    found = gather([bool(ok), str(figures)])
    wrong = [rank for rank, (passed, _) in enumerate(found) if not passed]
    failed = failed or bool(wrong)
    where = f" (ranks {wrong})" if wrong else ""
    say(f"{'FAIL' if wrong else 'PASS'} {name}{where}: {figures}")
    for rank in wrong:
        say(f"     rank {rank}: {found[rank][1]}")
    return not wrong


def attempt(name: str, part: Callable[[], None]) -> None:
    """Run a part. After an exception, which is a failure, later parts still run.

    Exchanges are numbered by part, so that ranks stay in step if a part fails on only one of them.
    """
    global failed, _parts, _rounds
    _parts += 1
    _rounds = _parts * 1000
    try:
        part()
    except Exception as e:
        failed = True
        print(f"FAIL {name} (rank {RANK}): {type(e).__name__}: {e}", flush=True)
        if RANK == 0:
            traceback.print_exc(file=sys.stdout)


def leave() -> None:
    """Exit with the exit code that the verdicts determine.

    The process ends without Python's cleanup, which endings.py tests.
    """
    torch.cuda.synchronize()
    LOG.unlink(missing_ok=True)
    store = dist.distributed_c10d._get_default_store()
    if RANK:
        store.set(f"left/{RANK}", "yes")
    else:
        # Rank 0 serves the store, so it leaves last.
        store.wait([f"left/{r}" for r in range(1, SIZE)], timedelta(seconds=30))
    sys.stdout.flush()
    os._exit(1 if failed else 0)


def settle() -> None:
    """Wait until all ranks have reached this point and their devices are idle."""
    torch.cuda.synchronize()
    dist.barrier(group=_control)


_stream: torch.cuda.Stream | None = None


def capture_stream() -> torch.cuda.Stream:
    """Return the stream that captures use, to reserve memory on it."""
    global _stream
    if _stream is None:
        _stream = torch.cuda.Stream()
    return _stream


def capture(work: Callable[[], Any], times: int = 1) -> torch.cuda.CUDAGraph:
    """Capture work that has already run once."""
    settle()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=capture_stream(), capture_error_mode="thread_local"):
        for _ in range(times):
            work()
    settle()
    return graph


def replayed(graph: torch.cuda.CUDAGraph, rounds: int = 30, replays: int = 1) -> float:
    """Return the median time of several replays in a row, in microseconds."""
    found = []
    for _ in range(rounds):
        begin, end = (
            torch.cuda.Event(enable_timing=True),
            torch.cuda.Event(enable_timing=True),
        )
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) * 1000)
    return statistics.median(found)


def in_turns(
    graphs: dict[str, torch.cuda.CUDAGraph], turns: int = 5, replays: int = 1
) -> dict[str, float]:
    """Time graphs in turns, so that noise affects all equally. Return each one's least median."""
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(turns):
        for name, graph in graphs.items():
            settle()
            found[name].append(replayed(graph, replays=replays))
    return {name: max(gather(min(times))) for name, times in found.items()}


LOG = Path(tempfile.gettempdir()) / f"symmem-nccl-{os.getpid()}.log"


def log_kernels() -> None:
    """Make NCCL log the kernels of a communicator's rank 0.

    NCCL reads this setting when it creates its first communicator.
    """
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="TUNING", NCCL_DEBUG_FILE=str(LOG))


def kernels(reduce: Callable[[], object]) -> list[str]:
    """Return what an all-reduce runs: kernels from the profiler, and lines of NCCL's log."""
    torch.cuda.synchronize()
    before = len(logged())
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        reduce()
        torch.cuda.synchronize()
    names = {event.key.split("(")[0] for event in profile.key_averages()}
    seen = sorted(n for n in names if "nccl" in n.lower() and "Kernel" in n)
    return sorted({name for rank in gather(seen + logged()[before:]) for name in rank})


def logged() -> list[str]:
    """Return the lines about all-reduces in NCCL's log."""
    if not LOG.exists():
        return []
    lines = (line.partition("NCCL INFO ")[2] for line in LOG.read_text().splitlines())
    return [line for line in lines if line.startswith("AllReduce") and "Bytes ->" in line]


def is_symmetric_kernel(names: list[str]) -> bool:
    """Return whether any of the kernels is one of NCCL's symmetric kernels."""
    return any("ncclSymk" in n or "[Symmetric]" in n for n in names)


SIZES = [n * MIB for n in (1, 2, 5, 12, 20, 24, 48)]


def history(seed: int, steps: int) -> Iterator[tuple[int | None, int]]:
    """Yield random steps: the index of a tensor to free, and the size in bytes of a new one."""
    draws = random.Random(seed)
    live = 0
    for _ in range(steps):
        drop = None
        if live and draws.random() < 0.45:
            drop = draws.randrange(live)
            live -= 1
        yield drop, draws.choice(SIZES)
        live += 1


class Noise:
    """Other tensors of this rank, which differ between ranks."""

    def __init__(self, seed: int):
        self.draws = random.Random(100 * seed + RANK)
        self.live: list[torch.Tensor] = []

    def step(self) -> None:
        """Sometimes allocate or free a tensor."""
        if self.draws.random() < 0.3:
            size = self.draws.randrange(1, 64) * MIB
            self.live.append(torch.empty(size, dtype=torch.uint8, device=DEVICE))
        if len(self.live) > 6:
            self.live.pop(self.draws.randrange(len(self.live)))
        if self.draws.random() < 0.05:
            torch.cuda.empty_cache()
