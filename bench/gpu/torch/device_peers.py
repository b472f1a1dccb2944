"""Compares symmem's handles and checked barriers with PyTorch's handles and kraken's barrier.

device_peers.py members|times|kraken|exchange|flashinfer

`times`, `kraken` and `exchange` need a checkout of github.com/meta-pytorch/kraken, which KRAKEN
names; `exchange` needs one of May 2026 or later. FLASHINFER names a folder with the package
flashinfer.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import common
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from common import DEVICE, RANK, SIZE, attempt, say, settle, verdict

import symmem

Tensor = torch.Tensor


def host_time(call: Callable[[], Any], calls: int = 100) -> float:
    """Return the time for which a call occupies the host, in microseconds."""
    best = float("inf")
    for _ in range(8):
        settle()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - begin) / calls * 1e6)
    return max(common.gather(best))


def members() -> None:
    """Measure how long calls of handles occupy the host, with PyTorch and symmem."""
    common.start()
    common.needs_gpus("times")
    shape, word = (256, 1024), torch.zeros(8, device=DEVICE, dtype=torch.uint32)
    stock = symm_mem.empty(shape, dtype=torch.bfloat16, device=DEVICE)
    with symmem.use():
        ours = torch.empty(shape, dtype=torch.bfloat16, device=DEVICE)
    handles = {"torch": symm_mem.rendezvous(stock, dist.group.WORLD), "symmem": symmem.handle(ours)}
    side = torch.cuda.Stream()
    calls: dict[str, Callable[[Any], Any]] = {
        "get_buffer": lambda h: h.get_buffer((RANK + 1) % SIZE, shape, torch.bfloat16, 0),
        "get_signal_pad": lambda h: h.get_signal_pad((RANK + 1) % SIZE, (16,), torch.int32),
        "buffer_ptrs_dev": lambda h: h.buffer_ptrs_dev,
        "stream_write_value32": lambda h: h.stream_write_value32(word, 1, 1),
        "put_signal and wait_signal": ring_of_signals,
        "barrier": lambda h: h.barrier(),
        "barrier on two streams": lambda h: on_two_streams(h, side),
    }
    rows = []
    for name, call in calls.items():

        def compare(name: str = name, call: Callable[[Any], Any] = call) -> None:
            found = {key: host_time(lambda h=h: call(h)) for key, h in handles.items()}
            rows.append([name, round(found["torch"], 2), round(found["symmem"], 2)])
            say(f"# {name}: torch {found['torch']:.2f} us, symmem {found['symmem']:.2f} us")

        attempt(name, compare)
    common.record("device-members", ["member", "torch us", "symmem us"], rows)
    common.leave()


def ring_of_signals(handle: Any) -> None:
    """Signal the next rank, and wait for the previous one."""
    handle.put_signal((RANK + 1) % SIZE)
    handle.wait_signal((RANK - 1) % SIZE)


def on_two_streams(handle: Any, side: torch.cuda.Stream) -> None:
    """Wait for all ranks on the current stream, and then on another one."""
    handle.barrier()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        handle.barrier()
    torch.cuda.current_stream().wait_stream(side)


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


class Comparison:
    """Runs functions of other libraries with PyTorch's rendezvous, and with symmem's.

    Attributes:
        memory: where the functions allocate symmetric memory, "torch" or "symmem".
    """

    def __init__(self) -> None:
        common.start()
        common.needs_gpus("times")
        self.memory = "torch"
        self._rows: list[list[object]] = []
        self._graphs: list[tuple[str, dict[str, Callable[[], Any]]]] = []
        self._made: dict[int, Any] = {}
        self._empty, self._rendezvous = symm_mem.empty, symm_mem.rendezvous
        symm_mem.empty, symm_mem.rendezvous = self.empty, self.rendezvous

    def empty(self, *shape: Any, **named: Any) -> Tensor:
        """Allocate a symmetric tensor, as PyTorch's function does."""
        if self.memory == "torch":
            return self._empty(*shape, **named)
        with symmem.use():
            made = torch.empty(*shape, **named)
        self._made[made.data_ptr()] = symmem.handle(made)
        return made

    def rendezvous(self, tensor: Tensor, group: Any = None) -> Any:
        """Return the handle of a tensor of either memory."""
        found = self._made.get(tensor.data_ptr())
        return self._rendezvous(tensor, group) if found is None else found

    def pair(self, values: Tensor) -> dict[str, Tensor]:
        """Return the same values in both memories."""
        found = {}
        for self.memory in ("torch", "symmem"):
            found[self.memory] = self.empty(values.shape, dtype=values.dtype, device=DEVICE)
            found[self.memory].copy_(values)
            self.rendezvous(found[self.memory], dist.group.WORLD)
        settle()
        return found

    def compare(self, name: str, run: Callable[[str], Any]) -> None:
        """Compare the results and times of a function, which is passed the name of the memory."""
        results = {}
        for self.memory in ("torch", "symmem"):
            results[self.memory] = run(self.memory).clone()
            settle()
        verdict(f"{name}: equal results", torch.equal(results["torch"], results["symmem"]))
        runs = {key: lambda key=key: run(key) for key in results}
        self._judge(name, eager(runs))
        self._graphs.append((name, runs))

    def finish(self, name: str) -> None:
        """Compare times in graphs, write the result file and exit."""
        for function, runs in self._graphs:

            def compare(name: str = function, runs: dict[str, Any] = runs) -> None:
                found = common.in_turns({k: common.capture(f, 4) for k, f in runs.items()}, 10)
                self._judge(f"{name} in graphs", {k: t / 4 for k, t in found.items()})

            attempt(f"{function} in graphs", compare)
        common.record(name, ["function", "torch us", "symmem us"], self._rows)
        common.leave()

    def _judge(self, name: str, found: dict[str, float]) -> None:
        ratio = found["torch"] / found["symmem"]
        shown = f"torch {found['torch']:.2f} us, symmem {found['symmem']:.2f} us, {ratio:.3f} x"
        self._rows.append([name, round(found["torch"], 2), round(found["symmem"], 2)])
        verdict(f"{name}: at least 0.98 x of torch's memory", ratio >= 0.98, shown)


def small(*shape: int) -> Tensor:
    """Return small whole numbers, whose sums are exact."""
    return torch.randint(-3, 4, shape, device=DEVICE).bfloat16()


def unchanged() -> None:
    """Run kraken's all-reduce and matmul."""
    comparison = Comparison()
    module = kraken()

    def reduce(n: int, name: str) -> None:
        inputs = comparison.pair(small(n))
        comparison.compare(name, lambda memory: module.comm.one_shot_all_reduce(inputs[memory]))

    def multiply(m: int, n: int, k: int, name: str) -> None:
        inputs = comparison.pair(small(m, k))
        b = torch.randn(n, k, device=DEVICE, dtype=torch.bfloat16).T

        def run(memory: str) -> Tensor:
            # kraken keeps every output tensor in this cache, so each call would call cudaMalloc.
            sys.modules["kraken.fused.all_gather_matmul"]._tma_desc_cache.clear()
            c: Tensor = module.fused.all_gather_matmul(inputs[memory], b)[1]
            return c

        comparison.compare(name, run)

    for n in (4096, 64 * 1024, 512 * 1024):
        name = f"one_shot_all_reduce of {n}"
        attempt(name, lambda n=n, name=name: reduce(n, name))
    for m, n, k in ((2048, 4096, 4096), (4096, 8192, 4096)):
        name = f"all_gather_matmul of {m} x {k} x {n}"
        attempt(name, lambda m=m, n=n, k=k, name=name: multiply(m, n, k, name))
    comparison.finish("device-kraken")


def exchange() -> None:
    """Run kraken's exchange of tokens between experts."""
    comparison = Comparison()
    comm = kraken().comm
    experts = 8  # of each rank

    def both(tokens: int, hidden: int) -> None:
        torch.manual_seed(RANK)
        weights = torch.rand(experts * SIZE, device=DEVICE)
        splits = (weights / weights.sum() * tokens).long()
        splits[0] += tokens - splits.sum()
        rows = comparison.pair(small(tokens, hidden))
        counts = comparison.pair(splits)
        there = comparison.pair(small(tokens * SIZE, hidden) * 0)
        places = comparison.pair(torch.zeros(2, experts * SIZE, device=DEVICE, dtype=torch.int64))
        back = comparison.pair(small(tokens, hidden) * 0)
        returned = comparison.pair(torch.zeros_like(places["torch"]))

        def dispatch(memory: str) -> Tensor:
            m = memory
            comm.all_to_all_vdev_2d(rows[m], there[m], counts[m], places[m])
            return there[m]

        def combine(memory: str) -> Tensor:
            m = memory
            comm.all_to_all_vdev_2d_offset(there[m], back[m], places[m], returned[m])
            return back[m]

        name = f"of {tokens} x {hidden}"
        comparison.compare(f"moe_a2a_dispatch {name}", dispatch)
        comparison.compare(f"moe_a2a_combine {name}", combine)
        verdict(f"tokens {name} are back", torch.equal(back["symmem"], rows["symmem"]))

    for tokens in (128, 4096):
        attempt(f"exchange of {tokens}", lambda tokens=tokens: both(tokens, 4096))
    comparison.finish("device-exchange")


def quantized() -> None:
    """Run FlashInfer's all-reduce that quantizes to fp8."""
    comparison = Comparison()
    sys.path.insert(0, os.environ["FLASHINFER"])
    import flashinfer.comm.quantized_allreduce as module

    caches: dict[str, dict[Any, Any]] = {"torch": {}, "symmem": {}}

    def reduce(n: int, name: str) -> None:
        torch.manual_seed(RANK)
        x = torch.randn(n, device=DEVICE, dtype=torch.bfloat16)
        output = torch.empty_like(x)

        def run(memory: str) -> Tensor:
            module._cache = caches[memory]  # the buffers that it allocates on its first call
            found: Tensor = module.quantized_all_reduce(x, dist.group.WORLD, output=output)
            return found

        comparison.compare(name, run)

    for n in (64 * 1024, 1 << 20, 16 << 20):
        name = f"quantized_all_reduce of {n}"
        attempt(name, lambda n=n, name=name: reduce(n, name))
    comparison.finish("device-flashinfer")


def eager(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Time 30 calls of each function, in turns. Return the lowest means, in microseconds."""
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


PARTS = {
    "members": members,
    "times": times,
    "kraken": unchanged,
    "exchange": exchange,
    "flashinfer": quantized,
}

if __name__ == "__main__":
    PARTS[sys.argv[1]]()
