"""Times operations of torch.distributed with symmem, gloo and PyTorch's fake backend.

    python bench/host/backend.py [--runs 5] [--ranks 2]

Each run times all backends in turn, each in new processes, so that noise affects all of them
equally. The program prints the medians of the runs in microseconds. The fake backend does not
communicate, so its time is PyTorch's overhead.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta

SIZES = {"1 KiB": 1 << 10, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "64 MiB": 1 << 26}
BACKENDS = ("symmem", "gloo", "fake")


def measure(call: Callable[[], object], nbytes: int) -> float:
    """Return the median time of a call in microseconds."""
    times = []
    for i in range(max(5, min(300, (1 << 27) // nbytes))):
        begin = time.perf_counter()
        call()
        if i > 2:
            times.append(time.perf_counter() - begin)
    return 1e6 * statistics.median(times)


def rank(backend: str) -> None:
    """Time the operations on this rank and print the times."""
    import torch
    import torch.distributed as dist

    if backend == "symmem":
        import symmem  # noqa: F401
    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        size, me = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
        dist.init_process_group("fake", store=FakeStore(), rank=me, world_size=size)
    else:
        dist.init_process_group(backend, timeout=timedelta(seconds=60))
    size, found = dist.get_world_size(), {}
    for name, nbytes in SIZES.items():
        whole = torch.ones(nbytes // 4)
        part = torch.ones(nbytes // 4 // size)
        other = torch.ones(nbytes // 4)
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda t=whole: dist.all_reduce(t),
            "broadcast": lambda t=whole: dist.broadcast(t, 0),
            "all_gather": lambda o=whole, t=part: dist.all_gather_into_tensor(o, t),
            "reduce_scatter": lambda o=part, t=whole: dist.reduce_scatter_tensor(o, t),
            "all_to_all": lambda o=other, t=whole: dist.all_to_all_single(o, t),
        }
        if backend == "gloo":
            del calls["reduce_scatter"]  # before PyTorch 2.14, gloo does not support it for tensors
        for operation, call in calls.items():
            found[f"{operation}, {name}"] = measure(call, nbytes)
    if dist.get_rank() == 0:
        print(json.dumps(found))


def run(backend: str, ranks: int, port: int) -> dict[str, float]:
    """Run the ranks of one backend."""
    started = []
    for number in range(ranks):
        env = os.environ | {"RANK": str(number), "WORLD_SIZE": str(ranks)}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--rank", backend]
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    out = [process.communicate(timeout=300)[0] for process in started]
    found: dict[str, float] = json.loads(out[0].strip().splitlines()[-1])
    return found


def main() -> None:
    """Compare the backends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.rank:
        rank(asked.rank)
        return
    times: dict[str, dict[str, list[float]]] = {}
    for number in range(asked.runs):
        for backend in BACKENDS:
            for name, value in run(backend, asked.ranks, 29000 + number).items():
                times.setdefault(name, {}).setdefault(backend, []).append(value)
    print(f"{'':24}" + "".join(f"{b:>10}" for b in BACKENDS) + "  gloo/symmem")
    for name, by in times.items():
        medians = {b: statistics.median(v) for b, v in by.items()}
        ratio = medians["gloo"] / medians["symmem"] if "gloo" in medians else float("nan")
        row = "".join(f"{medians.get(b, float('nan')):10.1f}" for b in BACKENDS)
        print(f"{name:24}{row}{ratio:13.2f}")


if __name__ == "__main__":
    main()
