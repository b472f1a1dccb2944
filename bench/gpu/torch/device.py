"""Tests checked pads in Triton and CUDA kernels on GPUs.

device.py signals|cuda|faults|killed|streams
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import common
import torch
import triton
import triton.language as tl
from common import DEVICE, RANK, SIZE, attempt, say, settle, verdict
from symmetric import sync_blocks

import symmem
import symmem.triton as checked
from symmem._torch.cuda import aside, own_stream

LAST = SIZE - 1
SITES = ("start", "before the sum", "after the sum", "last")


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


@triton.jit
def hold(word, limit):  # type: ignore[no-untyped-def]
    """Spins until a word is not 0, for at most `limit` polls."""
    polls = 0
    while polls < limit:
        polls += 1
        if tl.atomic_add(word, 0, sem="acquire", scope="sys") != 0:
            polls = limit


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

    def handle_barriers() -> None:
        with symmem.use():
            mine = torch.zeros(1000, device=DEVICE)
        handle = symmem.handle(mine)
        following = handle.get_buffer((RANK + 1) % SIZE, (1000,), torch.float32)
        found = torch.zeros(1000, device=DEVICE)

        def step() -> None:
            mine.add_(1)
            handle.put_signal((RANK - 1) % SIZE, 2)
            handle.wait_signal((RANK + 1) % SIZE, 2)
            found.add_(following)
            handle.barrier(channel=7)

        for _ in range(3):
            step()
        graph = common.capture(step, times=10)
        for _ in range(20):
            graph.replay()
        want = sum(range(1, 204))
        verdict(
            "barriers and signals of handles, also in graphs", bool((found == want).all()), want
        )

    attempt("ring", circle)
    attempt("handles", handle_barriers)
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


def handles() -> None:
    """Let the last rank miss a barrier of a handle, and a signal of another one."""
    with symmem.use():
        handle = symmem.handle(torch.zeros(16, device=DEVICE))
    settle()
    begin = time.monotonic()
    if RANK != LAST:
        handle.barrier(channel=3, timeout_ms=500)
    torch.cuda.synchronize()
    took = time.monotonic() - begin
    settle()
    text = ""
    try:
        handle.barrier(channel=3, timeout_ms=100)
    except symmem.SymmemError as e:
        text = f"{type(e).__name__}: {e}"
    words = "TimeoutError", "in a barrier on channel 3", f"rank {LAST} has not arrived"
    good = RANK == LAST or all(word in text for word in words)
    good = good and torch.ones(1000, device=DEVICE).sum().item() == 1000
    verdict("a handle's barrier names the missing rank", good, f"{took:.2f} s: {text}")
    with symmem.use():
        other = symmem.handle(torch.zeros(16, device=DEVICE))
    if RANK != LAST:
        other.wait_signal(LAST, 5, timeout_ms=300)
    torch.cuda.synchronize()
    text = ""
    try:
        if RANK != LAST:
            other.barrier()
    except symmem.SymmemError as e:
        text = f"{type(e).__name__}: {e}"
    words = "for a signal on channel 5", f"rank {LAST} has not sent it"
    good = RANK == LAST or all(word in text for word in words)
    verdict("a handle's signal names the missing rank", good, text)
    settle()


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

    for part in (missing, order, channel, groups, reuse, handles, spin):
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


def streams() -> None:
    """Let kernels wait on all of PyTorch's streams, and read pads on symmem's own stream."""
    common.start()
    with symmem.use():
        x = torch.zeros(16, device=DEVICE)
    handle, pad = symmem.handle(x), symmem.checked_pad()
    words = torch.zeros(1, device=DEVICE, dtype=torch.int32)
    one = torch.ones(1, dtype=torch.int32).pin_memory()
    hold[(1,)](words, 1)
    used = [torch.cuda.Stream(priority=n % 2 - 1) for n in range(64)]
    own = own_stream(DEVICE.index).cuda_stream
    verdict("the stream is not one of PyTorch's", own not in {s.cuda_stream for s in used})
    settle()
    ends = []
    for stream in [torch.cuda.current_stream(), *used]:
        with torch.cuda.stream(stream):
            hold[(1,)](words, 3_000_000)
            ends.append(torch.cuda.Event())
            ends[-1].record()
    begin = time.monotonic()
    texts = handle.explain(), pad.explain()
    took = time.monotonic() - begin
    waiting = not any(end.query() for end in ends)
    with aside(DEVICE.index):
        words.copy_(one, non_blocking=True)
    torch.cuda.synchronize()
    total = time.monotonic() - begin
    figures = f"{took:.3f} s of {total:.3f} s, {texts}"
    verdict("pads are read while all streams wait", waiting and took < 1, figures)
    verdict("pads are empty", texts == ("", "no signals are pending"), texts)
    common.leave()


PARTS = {
    "signals": signals,
    "cuda": cuda,
    "faults": faults,
    "killed": killed,
    "streams": streams,
}

if __name__ == "__main__":
    PARTS[sys.argv[1]]()
