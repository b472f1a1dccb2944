"""Tests checked pads in Triton kernels on GPUs, and compares them with kraken's unchecked barrier.

device.py signals|cuda|faults|killed|times|kraken

`times` and `kraken` need a checkout of github.com/meta-pytorch/kraken, which KRAKEN names.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import triton
import triton.language as tl
from common import DEVICE, RANK, SIZE, attempt, say, settle, verdict
from symmetric import sync_blocks

import symmem
import symmem.triton as checked

LAST = SIZE - 1
SITES = ("start", "before the sum", "after the sum", "last")
Tensor = torch.Tensor


@triton.jit
def barriers(pad, output, times, site: tl.constexpr):  # type: ignore[no-untyped-def]
    """Counts the barriers that pass."""
    passed = 0
    ok = checked.barrier(pad, tl.program_id(0), site)
    while ok and passed < times:
        passed += 1
        if passed < times:
            ok = checked.barrier(pad, tl.program_id(0), site)
    tl.store(output + tl.program_id(0), passed)


@triton.jit
def one_barrier(pad, channel, site: tl.constexpr, output):  # type: ignore[no-untyped-def]
    """Waits for all ranks once."""
    tl.store(output, checked.barrier(pad, channel, site).to(tl.int32))


@triton.jit
def ring(pad, peers, mine, output, n, rank: tl.constexpr, size: tl.constexpr, width: tl.constexpr):  # type: ignore[no-untyped-def]
    """Puts values in the next rank's memory, and reads those of the previous rank."""
    block = tl.program_id(0)
    at = block * width + tl.arange(0, width)
    to = tl.load(peers.to(tl.pointer_type(tl.uint64)) + (rank + 1) % size)
    values = tl.load(output + at, mask=at < n) + rank
    to = to.to(tl.pointer_type(tl.float32))
    if checked.put(pad, (rank + 1) % size, block, to + at, values, at < n, site=1):  # noqa: SIM102
        if checked.wait_signal(pad, (rank + size - 1) % size, block, site=1):
            found = tl.load(mine + at, mask=at < n)
            if checked.unchanged(pad, (rank + size - 1) % size, block, site=1):
                tl.store(output + at, found, mask=at < n)
    checked.barrier(pad, block, site=2)


@triton.jit
def unchecked(pads, rank: tl.constexpr, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """Waits for the same block of all ranks, as programs do on PyTorch's pads."""
    sync_blocks(pads.to(tl.pointer_type(tl.uint64)), rank, size)


@triton.jit
def send(pad, peer, channel, site: tl.constexpr, times):  # type: ignore[no-untyped-def]
    """Signals a rank some times in a row."""
    for _ in range(times):
        checked.signal(pad, peer, channel, site)


@triton.jit
def receive(pad, peer, channel, site: tl.constexpr, output):  # type: ignore[no-untyped-def]
    """Waits for a signal."""
    tl.store(output, checked.wait_signal(pad, peer, channel, site).to(tl.int32))


def signals() -> None:
    """Run barriers and signals that work, eager and in graphs."""
    common.start()
    pad = symmem.checked_pad(sites=SITES)

    def many(blocks: int) -> None:
        passed = torch.zeros(blocks, device=DEVICE, dtype=torch.int32)
        barriers[(blocks,)](pad.address, passed, 200, 1)
        pad.check()
        verdict(f"barriers of {blocks} blocks", bool((passed == 200).all()), passed[:4].tolist())

    for blocks in (1, 7, 132):
        attempt(f"{blocks} blocks", lambda blocks=blocks: many(blocks))

    def circle() -> None:
        n, width = 100_000, 4096
        with symmem.use():
            mine = torch.zeros(n, device=DEVICE)
        output = torch.zeros(n, device=DEVICE)
        handle = symmem.handle(mine)

        def step() -> None:
            ring[(triton.cdiv(n, width),)](
                *(pad.address, handle.buffer_ptrs_dev, mine, output, n, RANK, SIZE, width)
            )

        for _ in range(SIZE):
            step()
        pad.check()
        want = sum(range(SIZE))
        verdict("puts go round", bool((output == want).all()), output[:3].tolist())
        graph = common.capture(step, times=SIZE)
        for _ in range(50):
            graph.replay()
        pad.check()
        verdict("puts in graphs", bool((output == 51 * want).all()), output[:3].tolist())
        verdict("nothing is pending", pad.explain() == "no signals are pending", pad.explain())

    attempt("ring", circle)
    common.leave()


def short(group: symmem.Group | None = None, seconds: float = 1.0) -> symmem.CheckedPad:
    """Return a pad whose waits have a short timeout."""
    found = symmem.group(group)
    found.set_timeout(seconds)
    pad = symmem.checked_pad(found, sites=SITES)
    found.set_timeout(15)
    settle()
    return pad


def caught(pad: symmem.CheckedPad) -> tuple[str, float]:
    """Wait for the kernels, and return the error and the time."""
    begin = time.monotonic()
    torch.cuda.synchronize()
    took = time.monotonic() - begin
    settle()
    try:
        pad.check()
    except symmem.SymmemError as e:
        return f"{type(e).__name__}: {e}", took
    return "", took


def judge(name: str, pad: symmem.CheckedPad, *words: str) -> None:
    """Require an error with the words, a usable context, and quick failures afterwards."""
    text, took = caught(pad)
    verdict(name, all(w in text for w in words) and took < 8, f"{took:.2f} s: {text}")
    output = torch.ones(1, device=DEVICE, dtype=torch.int32)
    begin = time.monotonic()
    one_barrier[(1,)](pad.address, 9, 3, output)
    good = int(output.item()) == 0 and torch.ones(1000, device=DEVICE).sum().item() == 1000
    verdict(f"{name}: later waits fail at once", good and time.monotonic() - begin < 0.5)
    x = torch.ones(10, device=DEVICE)
    symmem.all_reduce(x)
    torch.cuda.synchronize()
    verdict(f"{name}: the group works", bool((x == SIZE).all()))


def spin() -> None:
    """Let ranks wait for the last one without checks, and explain that."""
    with symmem.use():
        x = torch.zeros(16, device=DEVICE)
    handle = symmem.handle(x)
    start = time.monotonic()
    if RANK != LAST:
        unchecked[(3,)](handle.signal_pad_ptrs_dev, RANK, SIZE)
    want = f"rank {LAST} has not taken the signals of rank 0 in blocks or channels 0-2"
    text = ""
    while want not in text and time.monotonic() - start < 10:
        text = handle.explain()
    common.gather(text)
    if RANK == LAST:
        unchecked[(3,)](handle.signal_pad_ptrs_dev, RANK, SIZE)
    verdict("an unchecked spin is explained", want in text, text)
    settle()
    verdict("the spin has ended", handle.explain() == "", handle.explain())


def faults() -> None:
    """Inject faults. Each must be named, and no wait may succeed wrongly."""
    common.start()
    out = torch.ones(4, device=DEVICE, dtype=torch.int32)
    for kernel in (one_barrier,):  # compile before times count
        kernel[(1,)](symmem.checked_pad().address, 0, 1, out)
    late = f"rank {LAST}"

    def missing() -> None:
        pad = short()
        if RANK != LAST:
            one_barrier[(1,)](pad.address, 3, 2, out)
        judge("missing rank", pad, "TimeoutError", f"{late} has not arrived", "channel 3", SITES[2])

    def order() -> None:
        pad = short(seconds=10)
        for site in (2, 1) if RANK == LAST else (1, 2):
            if site == 1:
                one_barrier[(1,)](pad.address, 3, 1, out)
            else:
                one_barrier[(1,)](pad.address, 3, 2, out[1:])
        judge("swapped order", pad, "DivergenceError", SITES[1], SITES[2], late, "channel 3")

    def channel() -> None:
        pad = short()
        one_barrier[(1,)](pad.address, 5 if RANK == LAST else 3, 1, out)
        judge("swapped channel", pad, "TimeoutError", "channel 3", "channel 5", "instead")

    def groups() -> None:
        twin = symmem.group(list(range(SIZE)), name="twin")
        one, two = short(), short(twin)
        mine = two if RANK == LAST else one
        one_barrier[(1,)](mine.address, 3, 1, out)
        other = "world" if RANK == LAST else "twin"
        judge("two groups", mine, "TimeoutError", f"of group {other} instead")

    def reuse() -> None:
        pad = short(seconds=10)
        if RANK == LAST:
            send[(1,)](pad.address, 0, 4, 1, 2)
        settle()
        if RANK == 0:
            receive[(1,)](pad.address, LAST, 4, 1, out)
        judge("early reuse", pad, "DivergenceError", f"{late} signalled again before rank 0")

    for part in (missing, order, channel, groups, reuse, spin):
        attempt(part.__name__, part)
    common.leave()


def killed() -> None:
    """Kill a rank. The others must name it."""
    symmem_group = common.start(timeout=12)
    pad = symmem.checked_pad(sites=SITES)
    out = torch.ones(1, device=DEVICE, dtype=torch.int32)
    one_barrier[(1,)](pad.address, 3, 1, out)
    pad.check()
    settle()
    say("EXPECT", *[0] * LAST, -9)
    if RANK == LAST:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    one_barrier[(1,)](pad.address, 3, 2, out)
    torch.cuda.synchronize()
    took = time.monotonic() - begin
    text = ""
    try:
        pad.check()
    except symmem.SymmemError as e:
        text = f"{type(e).__name__}: {e}"
    good = "RankLostError" in text and f"rank {LAST}" in text and "channel 3" in text and took < 6
    good = good and torch.ones(1000, device=DEVICE).sum().item() == 1000
    say("PASS" if good else "FAIL", f"killed rank: {took:.2f} s: {text}")
    del symmem_group
    sys.stdout.flush()
    os._exit(0 if good else 1)


def kraken() -> Any:
    """Import kraken."""
    sys.path.insert(0, os.environ["KRAKEN"])
    import kraken

    return kraken


def times() -> None:
    """Measure a barrier of all blocks: the checked one, kraken's, and an empty kernel."""
    common.start()
    common.needs_gpus("times")
    kraken()
    from device_times import checked_many, kraken_many

    pad = symmem.checked_pad()
    theirs = symm_mem.empty(1024, device=DEVICE)
    stock = symm_mem.rendezvous(theirs, dist.group.WORLD)
    worst = 0.0
    rows = []
    for loops in (1, 32):
        for blocks in (1, 2, 8, 24, 64, 132):

            def ours(blocks: int = blocks, loops: int = loops) -> None:
                checked_many[(blocks,)](pad.address, loops)

            def other(blocks: int = blocks, loops: int = loops) -> None:
                kraken_many[(blocks,)](stock.signal_pad_ptrs_dev, loops, RANK, SIZE)

            ours()
            other()
            graphs = {
                "checked": common.capture(ours, 20),
                "kraken": common.capture(other, 20),
            }
            found = common.in_turns(graphs)
            each = {name: t / 20 / loops for name, t in found.items()}
            ratio = each["checked"] / each["kraken"]
            worst = max(worst, ratio)
            rows.append([loops, blocks, round(each["checked"], 3), round(each["kraken"], 3)])
            say(f"# {loops} barriers, {blocks} blocks: checked {each['checked']:.2f} us, kraken "
                f"{each['kraken']:.2f} us, {ratio:.3f} x")  # fmt: skip
    pad.check()
    columns = ["barriers in a kernel", "blocks", "checked us", "kraken us"]
    common.record("device-barrier", columns, rows)
    verdict("the checked barrier takes at most 1.10 x of kraken's", worst <= 1.10, f"{worst:.3f}")
    common.leave()


def unchanged() -> None:
    """Run kraken's functions with torch's memory, and with only the rendezvous changed."""
    common.start()
    common.needs_gpus("times")
    module = kraken()
    original = symm_mem.rendezvous
    made: dict[int, Any] = {}

    def rendezvous(tensor: Tensor, group: Any = None) -> Any:
        return made.get(tensor.data_ptr()) or original(tensor, group)

    symm_mem.rendezvous = rendezvous

    def pair(shape: tuple[int, ...]) -> dict[str, Tensor]:
        """Return the same values in torch's symmetric memory and in symmem's."""
        stock = symm_mem.empty(shape, dtype=torch.bfloat16, device=DEVICE)
        with symmem.use():
            ours = torch.empty(shape, dtype=torch.bfloat16, device=DEVICE)
        made[ours.data_ptr()] = symmem.handle(ours)
        ours.copy_(torch.randint(-3, 4, shape, device=DEVICE))
        stock.copy_(ours)
        original(stock, dist.group.WORLD)
        settle()
        return {"torch": stock, "symmem": ours}

    def compare(name: str, run: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> None:
        inputs = pair(shape)
        results = {key: run(x).clone() for key, x in inputs.items()}
        settle()
        verdict(f"{name}: equal results", torch.equal(results["torch"], results["symmem"]))
        runs = {key: lambda x=x: run(x) for key, x in inputs.items()}
        judge_times(name, eager(runs))
        graphs.append((name, runs))

    def compare_graphs() -> None:
        for name, runs in graphs:
            found = common.in_turns({k: common.capture(f, 4) for k, f in runs.items()})
            judge_times(f"{name} in graphs", {k: t / 4 for k, t in found.items()})

    def judge_times(name: str, found: dict[str, float]) -> None:
        ratio = found["torch"] / found["symmem"]
        shown = f"torch {found['torch']:.2f} us, symmem {found['symmem']:.2f} us, {ratio:.3f} x"
        rows.append([name, round(found["torch"], 2), round(found["symmem"], 2)])
        verdict(f"{name}: at least 0.98 x of torch's memory", ratio >= 0.98, shown)

    rows: list[list[object]] = []
    graphs: list[tuple[str, dict[str, Callable[[], Tensor]]]] = []
    for n in (4096, 64 * 1024, 512 * 1024):
        name = f"one_shot_all_reduce of {n}"
        attempt(name, lambda n=n, name=name: compare(name, module.comm.one_shot_all_reduce, (n,)))
    for m, n, k in ((2048, 4096, 4096), (4096, 8192, 4096)):
        b = torch.randn(n, k, device=DEVICE, dtype=torch.bfloat16).T
        name = f"all_gather_matmul of {m} x {k} x {n}"

        def multiply(x: Tensor, b: Tensor = b) -> Tensor:
            # kraken keeps every output tensor in this cache, so each call would call cudaMalloc.
            sys.modules["kraken.fused.all_gather_matmul"]._tma_desc_cache.clear()
            c: Tensor = module.fused.all_gather_matmul(x, b)[1]
            return c

        attempt(name, lambda m=m, k=k, name=name: compare(name, multiply, (m, k)))
    attempt("graphs", compare_graphs)
    common.record("device-kraken", ["function", "torch us", "symmem us"], rows)
    common.leave()


def eager(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Time calls in turns, 30 in a row. Return each one's least mean, in microseconds."""
    best = dict.fromkeys(runs, float("inf"))
    host = dict.fromkeys(runs, float("inf"))
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(8):
            for name, run in runs.items():
                settle()
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                started = time.perf_counter()
                begin.record()
                for _ in range(30):
                    run()
                end.record()
                host[name] = min(host[name], (time.perf_counter() - started) / 30 * 1e6)
                torch.cuda.synchronize()
                best[name] = min(best[name], begin.elapsed_time(end) / 30 * 1000)
    say(f"#   the host takes {', '.join(f'{k} {t:.0f} us' for k, t in host.items())} for a call")
    return {name: max(common.gather(t)) for name, t in best.items()}


CUDA = r"""
#include <symmem_device.cuh>
extern "C" __global__ void rounds(
    void* const* pads, int* out, int times, unsigned following, unsigned previous) {
  const void* pad = pads[0];
  int passed = 0;
  for (int i = 0; i < times; i++) {
    if (!symmem::barrier(pad, blockIdx.x, 1)) break;
    symmem::arrive(pad, blockIdx.x, 2);
    if (!symmem::wait(pad, blockIdx.x, 2)) break;
    if (!symmem::mark(pad, following, blockIdx.x, 3)) break;
    symmem::signal(pad, following, blockIdx.x, 3);
    if (!symmem::wait_signal(pad, previous, blockIdx.x, 3)) break;
    if (!symmem::unchanged(pad, previous, blockIdx.x, 3)) break;
    passed++;
  }
  out[blockIdx.x] = passed;
}
"""


def cuda() -> None:
    """Use the header for CUDA C++."""
    common.start()
    pad = symmem.checked_pad(sites=SITES)
    include = str(Path(symmem.__file__).parent / "include")
    rounds = torch.cuda._compile_kernel(CUDA, "rounds", cuda_include_dirs=[include])

    passed = torch.zeros(64, device=DEVICE, dtype=torch.int32)
    address = torch.tensor([pad.address], device=DEVICE)
    peers = ((RANK + 1) % SIZE, (RANK - 1) % SIZE)
    rounds(grid=(64, 1, 1), block=(128, 1, 1), args=[address, passed, 200, *peers])
    pad.check()
    verdict("rounds of CUDA C++", bool((passed == 200).all()), passed[:4].tolist())
    common.leave()


PARTS = {
    "signals": signals,
    "cuda": cuda,
    "faults": faults,
    "killed": killed,
    "times": times,
    "kraken": unchanged,
}

if __name__ == "__main__":
    PARTS[sys.argv[1]]()
