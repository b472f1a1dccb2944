"""Times operations of torch.distributed with symmem, gloo and PyTorch's fake backend.

    python bench/host/backend.py [--runs 5] [--ranks 2] [--match WORDS]

Each run times an operation with all backends in turn, in the same processes, so that noise affects
all of them equally. The program prints the medians of the runs in microseconds, and in how many
comparisons gloo was faster. The fake backend does not communicate, so its time is PyTorch's
overhead. "C" is the time of a call of 1 KiB that calls symmem's C functions directly, and the next
figure is the median, over the turns, of what symmem takes beyond the times of fake and C. Flight
Recorder is off: PyTorch 2.15 attaches it to other backends, but not to the fake one.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

SIZES = {"1 KiB": 1 << 10, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "64 MiB": 1 << 26}
BACKENDS = ("symmem", "gloo", "fake")
SEND, RECV = 6, 7  # SYMMEM_SEND and SYMMEM_RECV

Call = Callable[[], object]


def turns(nbytes: int) -> tuple[int, int]:
    """Return how often the backends take turns in a run, and the number of calls in each turn."""
    calls = max(5, min(200, (1 << 26) // nbytes))
    return (10, 20) if calls == 200 else (1, calls)


def measure(call: Call, calls: int) -> float:
    """Return the median time of a call in microseconds."""
    times = []
    for i in range(calls):
        begin = time.perf_counter()
        call()
        if i > 1:
            times.append(time.perf_counter() - begin)
    return 1e6 * statistics.median(times)


def operations(group: Any, backend: str, count: int) -> dict[str, Call]:
    """Return calls of all operations of a group with tensors of `count` elements."""
    import torch
    import torch.distributed as dist

    size, me = dist.get_world_size(), dist.get_rank()
    whole, other = torch.ones(count), torch.ones(count)
    views = [list(t.chunk(size)) for t in (whole, other)]
    separate = [[t.clone() for t in tensors] for tensors in views]
    part = torch.ones(count // size)
    few = [count * (rank + 1) // size // size for rank in range(size)]
    sent, received = torch.ones(few[me] * size), torch.ones(sum(few))
    root, peer = 0, me ^ 1
    objects: list[Any] = [None] * size

    def exchange() -> None:
        for work in [dist.irecv(other, peer, group), dist.isend(whole, peer, group)]:
            work.wait()

    def message() -> None:
        for call in (dist.send, dist.recv) if me % 2 == 0 else (dist.recv, dist.send):
            call(whole, peer, group)

    calls: dict[str, Call] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_reduce async": lambda: dist.all_reduce(whole, group=group, async_op=True).wait(),
        "all_reduce max": lambda: dist.all_reduce(whole, dist.ReduceOp.MAX, group),
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced(separate[0], group=group),
        "reduce": lambda: dist.reduce(whole, root, group=group),
        "broadcast": lambda: dist.broadcast(whole, root, group),
        "all_gather tensor": lambda: dist.all_gather_into_tensor(whole, part, group),
        "reduce_scatter tensor": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
        "all_to_all uneven": lambda: dist.all_to_all_single(
            received, sent, few, [few[me]] * size, group
        ),
    }
    for kind, (parts, others) in (("views", views), ("list", separate)):
        calls |= {
            f"all_gather {kind}": lambda o=others: dist.all_gather(o, part, group),
            f"gather {kind}": lambda o=others: dist.gather(part, None if me else o, root, group),
            f"scatter {kind}": lambda p=parts: dist.scatter(part, None if me else p, root, group),
            f"reduce_scatter {kind}": lambda p=parts: dist.reduce_scatter(part, p, group=group),
            f"all_to_all {kind}": lambda o=others, p=parts: dist.all_to_all(o, p, group),
        }
    if size % 2 == 0:
        calls |= {"isend and irecv": exchange, "send and recv": message}
    if count <= 1 << 8:
        calls["barrier"] = lambda: dist.barrier(group)
        if backend != "fake":
            calls["all_gather_object"] = lambda: dist.all_gather_object(objects, me, group)
    return calls


def own_calls(count: int) -> dict[str, Call]:
    """Return calls that call symmem's C functions directly and wait."""
    import torch

    import symmem
    from symmem._c.arguments import Arguments
    from symmem._c.library import library

    world, x, y, me = symmem.init(backend="host"), *torch.ones(2, count), int(os.environ["RANK"])
    call = partial(Arguments, ctypes.sizeof(Arguments), world.handle, type=1, count=count)
    call = partial(call, send=x.data_ptr(), recv=y.data_ptr())
    raw = library().raw
    sum_ = call(recv=x.data_ptr(), flags=1)
    messages = [call(operation=op, root=me ^ 1, flags=1) for op in (SEND, RECV)]
    queued = [call(op + 1, operation=op, root=me ^ 1) for op in (RECV, SEND)]

    def exchange() -> None:
        for one in queued:
            raw.symmem_call(ctypes.byref(one))
        for one in queued:
            raw.symmem_stream_synchronize(one.stream)

    def message() -> None:
        for one in messages if me % 2 == 0 else messages[::-1]:
            raw.symmem_call(ctypes.byref(one))

    return {
        "all_reduce": lambda: (x, y, raw.symmem_call(ctypes.byref(sum_))),
        "isend and irecv": exchange,
        "send and recv": message,
    }


def supported(call: Call) -> bool:
    """Make a call, and return whether its backend supports it; some versions of gloo do not."""
    try:
        call()
    except (RuntimeError, NotImplementedError) as e:
        text = str(e).lower()
        if not any(words in text for words in ("not support", "not implemented")):
            raise
        return False
    return True


def rank(runs: int, match: str) -> None:
    """Time the operations on this rank. Rank 0 prints the table."""
    import torch.distributed as dist
    import torch.testing._internal.distributed.fake_pg  # noqa: F401

    import symmem  # noqa: F401

    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    groups = {b: dist.new_group(backend=b) for b in BACKENDS}
    slower = compared = 0
    say(f"{'':32}" + "".join(f"{b:>10}" for b in BACKENDS) + "  gloo/symmem")
    for name, nbytes in SIZES.items():
        by = {b: operations(group, b, nbytes // 4) for b, group in groups.items()}
        if nbytes == 1 << 10:
            by["C"] = own_calls(nbytes // 4)
        for operation in by["symmem"]:
            if match not in operation:
                continue
            calls = {b: c[operation] for b, c in by.items() if operation in c}
            calls = {b: call for b, call in calls.items() if supported(call)}
            times: dict[str, list[float]] = {b: [] for b in calls}
            count, each = turns(nbytes)
            for _ in range(runs * count):
                for backend, call in calls.items():
                    times[backend].append(measure(call, each))
            medians = {b: statistics.median(t) for b, t in times.items()}
            row = "".join(f"{medians.get(b, float('nan')):10.1f}" for b in BACKENDS)
            ratio = medians.get("gloo", float("nan")) / medians["symmem"]
            own = ""
            if "C" in medians:
                turns_of = zip(times["symmem"], times["fake"], times["C"], strict=True)
                over = statistics.median(ours - fake - c for ours, fake, c in turns_of)
                own = f"   C {medians['C']:.1f}, {over:.1f} over fake and C"
            say(f"{operation + ', ' + name:32}{row}{ratio:13.2f}{own}")
            compared += "gloo" in medians
            slower += ratio < 1
    say(f"gloo was faster in {slower} of {compared} comparisons")


def say(line: str) -> None:
    """Print a line on rank 0."""
    if os.environ["RANK"] == "0":
        print(line, flush=True)


def main() -> None:
    """Start the ranks, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--match", default="", help="time operations whose names contain this")
    asked = parser.parse_args()
    if "RANK" in os.environ:
        rank(asked.runs, asked.match)
        return
    env = os.environ | {"WORLD_SIZE": str(asked.ranks), "OMP_NUM_THREADS": "1"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29417", "TORCH_FR_BUFFER_SIZE": "0"}
    command = [sys.executable, "-W", "ignore", *sys.argv]
    ranks = [subprocess.Popen(command, env=env | {"RANK": str(r)}) for r in range(asked.ranks)]
    sys.exit(max(abs(process.wait(3000)) for process in ranks))


if __name__ == "__main__":
    main()
