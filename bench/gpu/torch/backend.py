"""The backend of torch.distributed on GPUs, compared with NCCL's.

    backend.py values|mixed|models|faults|times

Each argument runs in its own process. Rank 0 prints PASS or FAIL with each check.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import common
import torch
import torch.distributed as dist
from backend_operations import (
    CAPTURED,
    EVERY,
    OPERATIONS,
    Group,
    Tensor,
    all_gather_into,
    all_gather_uneven,
    all_reduce,
    all_reduce_of_copy,
    all_to_all,
    all_to_all_uneven,
    broadcast,
    numbers,
    reduce_scatter,
    reduce_scatter_uneven,
    strided,
)
from common import DEVICE, RANK, SIZE, attempt, gather, say, settle, verdict
from torch import nn

import symmem
from symmem._c.library import library

TYPES = torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32, torch.int64


def same(a: Tensor, b: Tensor) -> bool:
    """Compare two results bit by bit."""
    return a.shape == b.shape and bool(torch.equal(a, b))


def values() -> None:
    """Compare every operation with NCCL's, eager and in a captured graph."""
    common.distributed()
    theirs = dist.new_group(EVERY, backend="nccl")
    ours = dist.new_group(EVERY, backend="symmem", timeout=timedelta(seconds=20))
    for run in OPERATIONS:

        def compare(run: Any = run) -> None:
            by = all_reduce_of_copy if run is strided else run  # NCCL rejects strided tensors
            good = [same(run(ours, n), by(theirs, n)) for n in (1, 1000, 300_000)]
            verdict(run.__name__, all(good), good)

        attempt(run.__name__, compare)
    for dtype in (*TYPES, torch.uint8, torch.int8):
        attempt(f"all_reduce of {dtype}", lambda d=dtype: typed(d, ours, theirs))
    for run in CAPTURED:
        attempt(f"captured {run.__name__}", lambda r=run: captured(r, ours))
    common.leave()


def typed(dtype: torch.dtype, ours: Group, theirs: Group) -> None:
    """Compare reductions of one data type."""
    good = []
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.AVG):
        if op == dist.ReduceOp.AVG and not dtype.is_floating_point:
            continue
        a, b = numbers(5000, dtype=dtype), numbers(5000, dtype=dtype)
        dist.all_reduce(a, op, ours)
        dist.all_reduce(b, op, theirs)
        good.append(same(a, b))
    verdict(f"all_reduce of {dtype}", all(good), good)


def captured(run: Callable[[Group, int], Tensor], group: Group) -> None:
    """Replay an operation that was captured twice, and compare with an eager call."""
    want = run(group, 5000)
    settle()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(group, 5000)
        got = run(group, 5000)
    good = []
    for _ in range(3):
        got.zero_()
        graph.replay()
        torch.cuda.synchronize()
        good.append(same(got, want))
    verdict(f"captured {run.__name__}", all(good), good)


def opened(store: Any, backend: str, **options: Any) -> None:
    """Open the default process group with a prefix of the store."""
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(backend, store),
        rank=RANK,
        world_size=SIZE,
        timeout=timedelta(seconds=30),
        **options,
    )


def new_store() -> Any:
    """Open the store of all process groups of this program."""
    torch.cuda.set_device(DEVICE)
    port = int(os.environ["MASTER_PORT"])
    return dist.TCPStore("127.0.0.1", port, SIZE, RANK == 0, timedelta(seconds=30))


def check(name: str, good: bool, figures: object = "") -> None:
    """Print this rank's own verdict."""
    common.failed = common.failed or not good
    if RANK == 0 or not good:
        print("PASS" if good else f"FAIL (rank {RANK})", name, figures, flush=True)


def trial(name: str, run: Callable[[], None]) -> None:
    """Run a step; print the traceback of an exception."""
    import traceback

    try:
        run()
    except Exception:
        common.failed = True
        print(f"FAIL {name} (rank {RANK})\n{traceback.format_exc()}", flush=True)


def mixed() -> None:
    """Open default groups with symmem for CPUs, for GPUs, and for both."""
    store = new_store()
    for backend in (
        "cpu:symmem,cuda:symmem",
        "symmem",
        "cpu:gloo,cuda:symmem",
        "cpu:symmem,cuda:nccl",
    ):
        trial(backend, lambda b=backend: one_default(store, b))
        if dist.is_initialized():
            trial(f"{backend}: destroy", dist.destroy_process_group)
    trial("split", lambda: split(store))
    sys.stdout.flush()
    time.sleep(2)  # rank 0 serves the store
    os._exit(1 if common.failed else 0)


def one_default(store: Any, backend: str) -> None:
    """Use a default group with tensors on the CPU and on the GPU."""
    opened(store, backend)
    for device in ("cpu", DEVICE):
        x = numbers(3000).to(device)
        dist.all_reduce(x)
        want = sum(numbers(3000, rank=r) for r in EVERY).to(device)
        check(f"{backend}: all_reduce on {device}", torch.equal(x, want))
        y = torch.empty_like(x)
        batch = [
            dist.P2POp(dist.isend, x, (RANK + 1) % SIZE),
            dist.P2POp(dist.irecv, y, (RANK - 1) % SIZE),
        ]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        check(f"{backend}: messages on {device}", torch.equal(x, y))
    dist.barrier()
    found: list[Any] = [None] * SIZE
    dist.all_gather_object(found, RANK)
    check(f"{backend}: all_gather_object", found == EVERY, found)
    pair = dist.new_group([0, 1])
    if RANK < 2:
        x = numbers(10)
        dist.all_reduce(x, group=pair)
        check(f"{backend}: subgroup", torch.equal(x, numbers(10, rank=0) + numbers(10, rank=1)))
    mesh = dist.init_device_mesh("cuda", (SIZE,))
    x = numbers(7)
    dist.all_reduce(x, group=mesh.get_group())
    check(f"{backend}: mesh", torch.equal(x, sum(numbers(7, rank=r) for r in EVERY)))
    torch.cuda.synchronize()
    dist.barrier()


def split(store: Any) -> None:
    """Split a default group that is bound to a device."""
    opened(dist.PrefixStore("split", store), "symmem", device_id=DEVICE)
    halves = [[r for r in EVERY if r < SIZE // 2], [r for r in EVERY if r >= SIZE // 2]]
    mine = next(half for half in halves if RANK in half)
    some = dist.new_group(
        [0]
    )  # PyTorch splits the default group for groups of all ranks, but not for this one
    check("new_group of one rank", (some is not dist.GroupMember.NON_GROUP_MEMBER) == (RANK == 0))
    part = dist.split_group(None, halves)
    x = numbers(100)
    dist.all_reduce(x, group=part)
    check("split_group", torch.equal(x, sum(numbers(100, rank=r) for r in mine)))
    torch.cuda.synchronize()
    dist.destroy_process_group()


def network() -> nn.Sequential:
    """Return a network, the same on all ranks."""
    torch.manual_seed(0)
    layers = nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.Linear(512, 64)
    return nn.Sequential(*layers).to(DEVICE)


def train(parallel: nn.Module, seed: int = RANK) -> list[float]:
    """Train for some steps and return the losses."""
    optimizer = torch.optim.SGD(parallel.parameters(), 0.1, momentum=0.9)
    losses = []
    for step in range(6):
        torch.manual_seed(100 * step + seed)
        optimizer.zero_grad()
        loss = parallel(torch.randn(32, 256, device=DEVICE)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def ddp() -> list[float]:
    """Train with DistributedDataParallel in several buckets."""
    return train(nn.parallel.DistributedDataParallel(network(), [DEVICE.index], bucket_cap_mb=1))


def fsdp2() -> list[float]:
    """Train with fully_shard."""
    from torch.distributed.fsdp import fully_shard

    model = network()
    mesh = dist.init_device_mesh("cuda", (SIZE,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return train(fully_shard(model, mesh=mesh))


def tensor_parallel() -> list[float]:
    """Train with DTensor."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    model = nn.Sequential(*[network()[i] for i in (0, 1, 2)])
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return train(parallelize_module(model, dist.init_device_mesh("cuda", (SIZE,)), plan), seed=0)


def models() -> None:
    """Compare losses with NCCL's."""
    store = new_store()
    torch.use_deterministic_algorithms(True, warn_only=True)
    for kind in (ddp, fsdp2, tensor_parallel):
        found: dict[str, list[float]] = {}
        for backend in ("nccl", "symmem"):

            def run(kind: Any = kind, backend: str = backend, found: Any = found) -> None:
                opened(dist.PrefixStore(kind.__name__, store), backend)
                found[backend] = kind()
                torch.cuda.synchronize()

            trial(f"{kind.__name__} {backend}", run)
            if dist.is_initialized():
                trial("destroy", dist.destroy_process_group)
        if len(found) == 2:
            theirs, ours = (torch.tensor(x, dtype=torch.float64) for x in found.values())
            apart = ((theirs - ours) / theirs).abs().max().item()
            good = apart < 1e-5 and bool((ours > 0).all())
            exact = found["nccl"] == found["symmem"]
            check(
                f"{kind.__name__} has NCCL's losses", good, f"bits equal {exact}, {apart:.1e} apart"
            )
    sys.stdout.flush()
    time.sleep(2)
    os._exit(1 if common.failed else 0)


def faults() -> None:
    """Test a late rank and an aborted group, and use the GPU after each."""
    common.distributed()
    for name, seconds, run in (("late rank", 3, late), ("abort", 25, aborted)):
        group = dist.new_group(EVERY, backend="symmem", timeout=timedelta(seconds=seconds))
        x = numbers(5000)
        dist.all_reduce(x, group=group)
        settle()
        attempt(name, lambda r=run, g=group: r(g))
        usable = torch.ones(100, device=DEVICE).sum().item() == 100
        verdict(f"{name}: the GPU is usable", usable)
        trial(f"{name}: destroy", lambda g=group: dist.destroy_process_group(g))
    y = numbers(100)
    dist.all_reduce(y)
    verdict("NCCL's group works", same(y, sum(numbers(100, rank=r) for r in EVERY)))
    common.leave()


def late(group: Group) -> None:
    """Have the last rank miss a collective for longer than the timeout of 3 s."""
    begin = time.monotonic()
    if RANK == SIZE - 1:
        time.sleep(5)
    text = ""
    try:
        for _ in range(3):
            dist.all_reduce(numbers(5000), group=group)
            torch.cuda.synchronize()
    except dist.DistBackendError as e:
        text = str(e)
    waited = time.monotonic() - begin
    good = str(SIZE - 1) in text and "imed out" in text and waited < 9
    verdict("late rank is named", good, f"{waited:.1f} s: {text[:300]!r}")


def aborted(group: Group) -> None:
    """Abort a collective that one rank has not called."""
    begin = time.monotonic()
    backend = group._get_backend(DEVICE)
    timer = threading.Timer(1, backend.abort)
    text = "no error"
    try:
        if RANK != 0:
            dist.all_reduce(numbers(5000), group=group)
        timer.start()
        torch.cuda.synchronize()
        timer.join()
        dist.all_reduce(numbers(5000), group=group)
    except Exception as e:
        text = f"{type(e).__name__}: {e}"
    waited = time.monotonic() - begin
    verdict(
        "abort ends waits", text != "no error" and waited < 8, f"{waited:.1f} s: {text[:200]!r}"
    )


def host_time(call: Callable[[], object]) -> float:
    """Return the host's time of a call in us: the least of 7 means of 300 calls without a wait."""
    found = []
    for _ in range(7):
        begin = time.perf_counter()
        for _ in range(300):
            call()
        found.append((time.perf_counter() - begin) * 1e6 / 300)
        settle()
    return min(found)


def overhead(ours: Group, theirs: Group) -> None:
    """Compare the time of a call of 1 KiB with PyTorch's own and symmem's own."""
    import torch.testing._internal.distributed.fake_pg

    x = torch.zeros(256, device=DEVICE)
    fake = dist.new_group(EVERY, backend="fake")
    direct = symmem.group(EVERY)
    stream = torch.cuda.current_stream().cuda_stream
    raw, handle, address = library().raw, direct.handle, x.data_ptr()

    def own() -> None:
        raw.symmem_all_reduce(handle, 256, 1, 0, 0, address, address, stream)

    times = {
        "symmem": host_time(lambda: dist.all_reduce(x, group=ours)),
        "fake": host_time(lambda: dist.all_reduce(x, group=fake)),
        "C": host_time(own),
        "nccl": host_time(lambda: dist.all_reduce(x, group=theirs)),
    }
    over = times["symmem"] - times["fake"] - times["C"]
    figures = ", ".join(f"{name} {t:.2f} us" for name, t in times.items())
    verdict("1 KiB: at most 2 us over fake + C", over <= 2, f"{over:.2f} us over; {figures}")


TIMED = (
    *(all_reduce, all_gather_into, reduce_scatter, all_to_all, broadcast),
    *(all_gather_uneven, reduce_scatter_uneven, all_to_all_uneven),
)

TIMED_SIZES = [n << 10 for n in (1, 64, 1024, 16 * 1024, 32 * 1024, 64 * 1024)]
"""The bytes of a rank's part."""


def uneven_rows(count: int) -> list[int]:
    """Return a number of elements for each rank. They differ, and the largest is `count`."""
    return [count * (rank + 1) // SIZE for rank in EVERY]


def times() -> None:
    """Compare times with NCCL's: of a call of 1 KiB, and of operations in graphs and eager."""
    common.needs_gpus("times of operations")
    common.distributed()
    theirs = dist.new_group(EVERY, backend="nccl")
    symmem.init(backend="nccl", timeout=30)
    ours = dist.new_group(EVERY, backend="symmem", timeout=timedelta(seconds=20))
    attempt("1 KiB", lambda: overhead(ours, theirs))
    for kind in TIMED:
        for size in TIMED_SIZES:
            attempt(
                f"{kind.__name__} {size}", lambda k=kind, s=size: compare_times(k, s, ours, theirs)
            )
    common.leave()


def compare_times(kind: Any, size: int, ours: Group, theirs: Group) -> None:
    """Time an operation of both groups in turns, in graphs and eager."""
    part, whole = (
        torch.zeros(size // 4, device=DEVICE),
        torch.zeros(SIZE * size // 4, device=DEVICE),
    )
    other = torch.zeros_like(whole)
    counts = uneven_rows(size // 4)
    mine = counts[RANK]
    rows, got = ([*t[: sum(counts)].split(counts)] for t in (whole, other))
    sent, received = whole[: mine * SIZE], other[: sum(counts)]
    calls: dict[Any, Callable[[Group], object]] = {
        all_reduce: lambda g: dist.all_reduce(part, group=g),
        all_gather_into: lambda g: dist.all_gather_into_tensor(whole, part, group=g),
        reduce_scatter: lambda g: dist.reduce_scatter_tensor(part, whole, group=g),
        all_to_all: lambda g: dist.all_to_all_single(other, whole, group=g),
        broadcast: lambda g: dist.broadcast(part, 0, group=g),
        all_gather_uneven: lambda g: dist.all_gather(got, rows[RANK], group=g),
        reduce_scatter_uneven: lambda g: dist.reduce_scatter(got[RANK], rows, group=g),
        all_to_all_uneven: lambda g: dist.all_to_all_single(
            received, sent, counts, [mine] * SIZE, group=g
        ),
    }
    groups = {"symmem": ours, "nccl": theirs}
    eager: dict[str, list[float]] = {name: [] for name in groups}
    for group in groups.values():
        calls[kind](group)
    settle()
    graphs = {
        name: common.capture(lambda g=g: calls[kind](g), times=10) for name, g in groups.items()
    }
    replays = common.in_turns(graphs, turns=3)
    for _ in range(3):
        for name, group in groups.items():
            settle()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(20):
                calls[kind](group)
            end.record()
            torch.cuda.synchronize()
            eager[name].append(begin.elapsed_time(end) * 50)
    shown = {name: max(gather(statistics.median(t))) for name, t in eager.items()}
    say(
        f"{kind.__name__:21} {size:9} bytes: graph {replays['symmem'] / 10:8.1f} us, nccl "
        f"{replays['nccl'] / 10:8.1f}; eager {shown['symmem']:8.1f}, nccl {shown['nccl']:8.1f}"
    )


PARTS = {f.__name__: f for f in (values, mixed, models, faults, times)}

if __name__ == "__main__":
    PARTS[sys.argv[1]]()
