"""Compares an engine's groups with and without symmem's plug-in: engines.py vllm|sglang.

One group is created before the plug-in is loaded, and another one afterwards. Both run the same
calls: eager, in a graph that the engine captures, and compiled. Their results must be the same, and
a call on symmem must not be slower than the engine's own in the same run.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import common
import engine_norms
import engine_stubs
import torch
from common import DEVICE, MIB, RANK, SIZE, attempt, in_turns, say, settle, verdict
from engine_norms import CALLS, NOISE, SLOWER, Tensors, eager_in_turns, recorded

import symmem
from symmem.engines import takeover

engine_stubs.install("sgl_kernel")  # SGLang imports it if there is a GPU
# On GPUs, vLLM's passes need its compiled operators. The passes are tested on CPUs.
engine_stubs.OWN.add("vllm.compilation.passes.pass_manager")

HIDDEN = 4096
TOKENS = [int(n) for n in os.environ.get("TOKENS", "1 8 32 128 512 2048 8192").split()]
NORM_TOKENS = 512
"""The maximum number of tokens of a fused norm. Larger ones are left to the engine."""

ALL_PARTS = "calls compiled decoder norms"
PARTS = os.environ.get("PARTS", ALL_PARTS).split()
if unknown := {*PARTS} - {*ALL_PARTS.split()}:
    sys.exit(f"no part is named {' or '.join(sorted(unknown))}; the parts are {ALL_PARTS}")
REPLAYS = 3
SHORT_REPLAYS, SHORT = 20, 256 << 10
"""Calls for at most SHORT bytes of tokens are replayed more often, because ranks start at different
times. All ranks must replay equally often, whatever their own rows."""

LATER = 16 * MIB
"""The maximum memory that symmem may allocate after a group was created."""


class Case(NamedTuple):
    """A call of a group.

    Attributes:
        name: the name of the call.
        rows: returns the number of rows of this rank's input for a number of tokens.
        run: makes the call.
    """

    name: str
    rows: Callable[[int], int]
    run: Callable[[Any, torch.Tensor], Any]


def numbers(rows: int, seed: int = 0, rank: int = RANK) -> torch.Tensor:
    """Return a rank's tensor of small integers, whose sums are exact in bfloat16."""
    generator = torch.Generator(device=DEVICE).manual_seed(100 * seed + rank)
    made = torch.randint(-8, 8, (rows, HIDDEN), device=DEVICE, generator=generator)
    return made.bfloat16()


def uneven(tokens: int) -> list[int]:
    """Return the number of rows of each rank in an uneven call."""
    return [tokens + rank for rank in range(SIZE)]


def exchange(group: Any, x: torch.Tensor) -> torch.Tensor:
    """Send to the next rank and receive from the previous one in an order that cannot hang."""
    if RANK % 2 == 0:
        group.send(x)
        return group.recv(x.shape, x.dtype)
    got = group.recv(x.shape, x.dtype)
    group.send(x)
    return got


def to_all(group: Any, x: torch.Tensor) -> torch.Tensor:
    """Exchange equal parts with SGLang's function. vLLM's groups have no such call."""
    output = torch.empty_like(x)
    group.all_to_all_single(output.view(-1), x.view(-1))
    return output


def experts(x: torch.Tensor) -> Tensors:
    """Return a rank's inputs for experts: hidden states, weights, and expert indices."""
    rows = x.shape[0]
    if rows not in _routes:
        weights = torch.full((rows, 8), RANK + 0.5, device=DEVICE)
        _routes[rows] = weights, torch.full_like(weights, RANK, dtype=torch.int32)
    return [x, *_routes[rows]]


_routes: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}


COMMON = (
    Case("all_reduce", lambda n: n, lambda g, x: g.all_reduce(x)),
    Case("all_gather dim 0", lambda n: n, lambda g, x: g.all_gather(x, 0)),
    Case("all_gather dim -1", lambda n: n, lambda g, x: g.all_gather(x, -1)),
    Case("broadcast", lambda n: n, lambda g, x: g.broadcast(x, SIZE - 1)),
    Case("send and recv", lambda n: n, exchange),
)


class Vllm:
    """Groups of vLLM."""

    cases = (
        *COMMON,
        Case("reduce_scatter", lambda n: n * SIZE, lambda g, x: g.reduce_scatter(x, 0)),
        Case(
            "all_gatherv",
            lambda n: n,
            lambda g, x: g.all_gatherv(experts(x), 0, [x.shape[0]] * SIZE),
        ),
        Case(
            "all_gatherv uneven",
            lambda n: uneven(n)[RANK],
            lambda g, x: g.all_gatherv(experts(x), 0, uneven(x.shape[0] - RANK)),
        ),
        Case("reduce_scatterv", lambda n: n * SIZE, lambda g, x: g.reduce_scatterv(x, 0)),
        Case(
            "reduce_scatterv uneven",
            lambda n: sum(uneven(n)),
            lambda g, x: g.reduce_scatterv(x, 0, uneven((x.shape[0] - sum(range(SIZE))) // SIZE)),
        ),
    )

    def __init__(self) -> None:
        import ctypes

        import vllm.distributed.parallel_state as state
        from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary

        # vLLM needs NCCL 2.29.7, even if it does not suspend communicators.
        nccl = ctypes.CDLL(os.environ["VLLM_NCCL_SO_PATH"])
        NCCLLibrary.exported_functions = [
            f for f in NCCLLibrary.exported_functions if hasattr(nccl, f.name)
        ]
        self.state = state
        state.init_distributed_environment(SIZE, RANK, "env://", DEVICE.index, "nccl")

    def make(self) -> Any:
        """Create a group for tensor parallelism."""
        every = [list(range(SIZE))]
        return self.state.init_model_parallel_group(every, DEVICE.index, "nccl", group_name="tp")

    def plug(self) -> None:
        """Load the plug-in."""
        import symmem.engines.vllm as plugin

        plugin.register()

    def takeover(self, group: Any) -> Any:
        """Return the takeover of a group, or None if it was made without the plug-in."""
        return getattr(group.device_communicator, "takeover", None)

    def fused_norm(self, group: Any) -> Callable[..., Tensors]:
        """Return the operator that the plug-in's compiler pass puts into graphs."""
        name = group.unique_name
        operator = torch.ops.symmem.vllm_all_reduce_rms_norm
        return lambda x, residual, weight: operator(x, residual, weight, 1e-6, name)


class Sglang:
    """Groups of SGLang."""

    cases = (
        *COMMON,
        Case(
            "reduce_scatter",
            lambda n: n * SIZE,
            lambda g, x: g.reduce_scatter_along_dim(x, 0),
        ),
        Case(
            "all_gatherv",
            lambda n: n,
            lambda g, x: g.all_gatherv(experts(x), [x.shape[0]] * SIZE),
        ),
        Case(
            "all_gatherv uneven",
            lambda n: uneven(n)[RANK],
            lambda g, x: g.all_gatherv(experts(x), uneven(x.shape[0] - RANK)),
        ),
        Case("reduce_scatterv", lambda n: n * SIZE, lambda g, x: g.reduce_scatterv(x)),
        Case("all_to_all", lambda n: n * SIZE, to_all),
    )

    def __init__(self) -> None:
        import sglang.srt.distributed.parallel_state as state

        self.state = state
        state.init_distributed_environment(SIZE, RANK, "env://", DEVICE.index, "nccl")

    def make(self) -> Any:
        """Create a group without its custom all-reduce, which would have to be compiled."""
        return self.state.init_model_parallel_group(
            [list(range(SIZE))],
            DEVICE.index,
            "nccl",
            use_custom_allreduce=False,
            use_mscclpp=False,
            use_torch_symm_mem_allreduce=False,
            group_name="tp",
        )

    def plug(self) -> None:
        """Load the plug-in and apply its hooks."""
        from sglang.srt.plugins.hook_registry import HookRegistry

        import symmem.engines.sglang as plugin

        plugin.register()
        HookRegistry.apply_hooks()

    def takeover(self, group: Any) -> Any:
        """Return the takeover of a group, or None if it was made without the plug-in."""
        return getattr(group, "symmem", None)

    def fused_norm(self, group: Any) -> Callable[..., Tensors]:
        """Return SGLang's function for a fused norm, which here always uses the group."""
        from sglang.srt.layers import flashinfer_comm_fusion as fusion

        fusion.resolve_fusion_group = lambda *, use_attn_tp_group: (SIZE, RANK, group)
        return fusion.flashinfer_allreduce_residual_rmsnorm


def selected(engine: Any) -> list[Case]:
    """Return the calls whose names begin with an entry in CASES, or all calls."""
    names = tuple(filter(None, os.environ.get("CASES", "").split(",")))
    return [case for case in engine.cases if not names or case.name.startswith(names)]


def flat(found: Any) -> Tensors:
    """Return the tensors of a result."""
    return list(found) if isinstance(found, list | tuple) else [found]


def run_by_symmem(engine: Any, group: Any) -> int:
    """Return the number of a group's calls that symmem has run."""
    made = engine.takeover(group)
    if made is None or made.group is None:
        return 0
    groups = symmem.stats(made.group)["groups"].values()
    return sum(sum(found["paths"].values()) for found in groups)


def beside_torch() -> int:
    """Return the used bytes of the GPU outside PyTorch's allocator."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


Results = dict[tuple[str, int], tuple[Tensors, bool]]


def eagerly(engine: Any, group: Any) -> Results:
    """Run all calls, and return the results and whether symmem ran each call."""
    found = {}
    for case in selected(engine):
        for tokens in TOKENS:
            x = numbers(case.rows(tokens), tokens)
            before = run_by_symmem(engine, group)
            result = [t.clone() for t in flat(case.run(group, x))]
            found[case.name, tokens] = result, run_by_symmem(engine, group) > before
    settle()
    return found


def same(a: Tensors, b: Tensors) -> bool:
    """Compare results bit by bit."""
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


class Recorded:
    """A graph of calls captured by the engine."""

    def __init__(self, group: Any, case: Case, tokens: int, times: int):
        self.x = numbers(case.rows(tokens), tokens)

        def work() -> None:
            self.output = flat(case.run(group, self.x))

        self.graph = recorded(group, work, times)

    def replay(self, x: torch.Tensor) -> Tensors:
        """Replay with another input and return the results."""
        self.x.copy_(x)
        self.graph.replay()
        torch.cuda.synchronize()
        return [t.clone() for t in self.output]


def compare(own: Any, ours: Any, case: Case, tokens: int, taken: bool) -> None:
    """Compare the bits and the times of a call in graphs of both groups."""
    fresh = numbers(case.rows(tokens), tokens + 1)
    once = [Recorded(group, case, tokens, 1) for group in (own, ours)]
    equal = same(once[0].replay(fresh), once[1].replay(fresh))
    many = {
        "own": Recorded(own, case, tokens, CALLS).graph,
        "symmem": Recorded(ours, case, tokens, CALLS).graph,
    }
    x = numbers(case.rows(tokens), tokens)
    replays = SHORT_REPLAYS if tokens * HIDDEN * x.itemsize <= SHORT else REPLAYS
    times = in_turns(many, replays=replays)
    graphs = {name: time / CALLS / replays for name, time in times.items()}
    groups = {"own": own, "symmem": ours}
    calls = {name: partial(case.run, group, x) for name, group in groups.items()}
    eager = {name: times[0] for name, times in eager_in_turns(calls).items()}
    ratio = graphs["symmem"] / graphs["own"]
    slower = taken and ratio > SLOWER and graphs["symmem"] - graphs["own"] > NOISE
    figures = (
        f"{x.nbytes} bytes, {'symmem' if taken else 'engine'}; graph {graphs['own']:.1f} us, with "
        f"symmem {graphs['symmem']:.1f} ({ratio:.3f}); eager {eager['own']:.1f}, "
        f"{eager['symmem']:.1f} ({eager['symmem'] / eager['own']:.3f})"
    )
    verdict(f"{case.name}, graph equal: {equal}, slower: {slower}", equal and not slower, figures)


def compiled(engine: Any, own: Any, ours: Any) -> None:
    """Check that a compiled layer of both groups is right and calls symmem."""
    weight = torch.eye(HIDDEN, device=DEVICE, dtype=torch.bfloat16)
    total = sum(numbers(8, 0, rank).float() for rank in range(SIZE))
    want = (total * 2 + numbers(8).float()).bfloat16()
    apart = {}
    for name, group in (("engine", own), ("symmem", ours)):

        def layer(x: torch.Tensor, group: Any = group) -> torch.Tensor:
            return group.all_reduce(x @ weight) * 2 + x

        torch._dynamo.reset()
        run = torch.compile(layer, fullgraph=True)
        run(numbers(8))
        before = run_by_symmem(engine, group)
        apart[name] = (run(numbers(8)) - want).abs().max().item()
    called = run_by_symmem(engine, ours) > before
    figures = f"symmem was called: {called}; off by at most {apart}"
    verdict("compiled", apart["symmem"] == 0 and called, figures)


def fused_norms(engine: Any, own: Any, ours: Any) -> None:
    """Compare fused norms with separate steps."""
    inputs = [numbers(tokens, 1) for tokens in TOKENS if tokens <= NORM_TOKENS]
    fused = engine.fused_norm(ours)
    engine_norms.compare(own, ours, fused, inputs, lambda: run_by_symmem(engine, ours))


def decode(group: Any, steps: int = 64) -> list[int]:
    """Decode with a small tensor-parallel network whose layers run in a captured graph."""
    generator = torch.Generator(device=DEVICE).manual_seed(7)
    inner, words = 8192 // SIZE, 16384

    def weight(*shape: int) -> torch.Tensor:
        made = torch.randn(*shape, device=DEVICE, generator=generator) / shape[0] ** 0.5
        return made.bfloat16()

    table = weight(words, HIDDEN) * 64
    layers = [(weight(HIDDEN, 8192), weight(8192, HIDDEN)) for _ in range(4)]
    mine = slice(RANK * inner, (RANK + 1) * inner)
    parts = [(up[:, mine].contiguous(), down[mine].contiguous()) for up, down in layers]

    def step(x: torch.Tensor) -> torch.Tensor:
        for up, down in parts:
            y = torch.nn.functional.rms_norm(x, (HIDDEN,))
            x = x + group.all_reduce(torch.nn.functional.silu(y @ up) @ down)
        return x

    x = table[:8].clone()
    state = x

    def work() -> None:
        nonlocal state
        state = step(x)

    graph = recorded(group, work, 1)
    found: list[int] = []
    for _ in range(steps):
        graph.replay()
        tokens = (state @ table.T).argmax(-1)
        found += tokens.tolist()
        x.copy_(table[tokens] + 0.5 * state)
    return found


def decoder(_: Any, own: Any, ours: Any) -> None:
    """Compare the tokens of a decoder. With two ranks, the order of a sum does not matter."""
    theirs, mine = decode(own), decode(ours)
    equal = sum(a == b for a, b in zip(theirs, mine, strict=True))
    verdict(
        "tokens of a decoder",
        theirs == mine or SIZE > 2,
        f"{equal} of {len(theirs)} equal, {len(set(theirs))} different ones",
    )


def compare_calls(engine: Any, own: Any, ours: Any, before: Results, after: Results) -> None:
    """Compare the eager results of both groups, and each call in graphs."""
    wrong = [key for key, (result, _) in after.items() if not same(result, before[key][0])]
    verdict("eager results are equal", not wrong, wrong or f"{len(after)} calls")
    for case in selected(engine):
        for tokens in TOKENS:
            taken = after[case.name, tokens][1]
            attempt(case.name, lambda c=case, n=tokens, t=taken: compare(own, ours, c, n, t))


def main() -> None:
    """Make both groups and compare them."""
    logging.basicConfig(level=logging.INFO if RANK == 0 else logging.WARNING)
    common.distributed()
    engine = {"vllm": Vllm, "sglang": Sglang}[sys.argv[1]]()
    own = engine.make()
    start = beside_torch()
    before = eagerly(engine, own) if "calls" in PARTS else {}
    had = beside_torch()
    engine.plug()
    if os.environ.get("ALL") == "1":
        takeover.ALWAYS_ON_GPUS.update(("send", "recv", "all_gather_v", "reduce_scatter_v"))
    ours = engine.make()
    made = beside_torch()
    found = engine.takeover(ours)
    if not verdict("the group is taken over", found.group is not None, found.reason or "yes"):
        common.leave()
    after = eagerly(engine, ours) if before else {}
    # An engine's group allocates memory in the first calls of some kinds.
    later = beside_torch() - made - (had - start)
    say(f"# the engine's communicators and symmem take {(made - had) / MIB:.0f} MiB")
    parts = {"compiled": compiled, "decoder": decoder, "norms": fused_norms}
    for name in (name for name in PARTS if name in parts):
        attempt(name, lambda part=parts[name]: part(engine, own, ours))
    if before:
        compare_calls(engine, own, ours, before, after)
        verdict(
            "memory is taken when the group is made", later <= LATER, f"{later / MIB:.0f} MiB later"
        )
    common.leave()


if __name__ == "__main__":
    main()
