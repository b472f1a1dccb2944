"""Tests vLLM's groups with symmem's plug-in, using the wheel's Python files on CPUs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import engine_stubs
import torch
from harness import RANK, SIZE, check, main, raises

engine_stubs.install()
# Otherwise inductor starts six processes per rank to detect vector instructions.
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "0"

import vllm.distributed.parallel_state as state  # noqa: E402
from vllm import plugins  # noqa: E402

import symmem  # noqa: E402
from symmem import errors  # noqa: E402
from symmem._rank.session import session  # noqa: E402
from symmem.engines import takeover  # noqa: E402

TOTAL = SIZE * (SIZE + 1) / 2
ROWS = list(range(1, SIZE + 1))
"""The number of rows of each rank in uneven calls."""

lines: list[str] = []


class Lines(logging.Handler):
    """Stores the plug-in's log messages."""

    def emit(self, record: logging.LogRecord) -> None:
        lines.append(record.getMessage())


def make(name: str, ranks: list[list[int]] | None = None) -> Any:
    """Create a group as vLLM's workers do."""
    ranks = ranks or [list(range(SIZE))]
    return state.init_model_parallel_group(ranks, RANK, "gloo", group_name=name)


def load() -> None:
    """Load plug-ins through the entry point, as vLLM's processes do."""
    plugins.plugins_loaded = False
    plugins.load_general_plugins()


def own(shape: tuple[int, ...] = (4, 6)) -> torch.Tensor:
    return torch.full(shape, RANK + 1.0)


def calls(group: Any) -> int:
    """Return the number of calls that symmem has run for a group."""
    world = group.device_communicator.takeover.group
    (found,) = symmem.stats(world)["groups"].values()
    return sum(found["paths"].values())


def counted(group: Any, want: int, call: Callable[[], Any]) -> Any:
    """Make a call, and check that symmem ran it."""
    before = calls(group)
    result = call()
    assert calls(group) - before == want, (calls(group) - before, want)
    return result


def equal(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=0)


@check
def the_plug_in_for_vllm_can_be_turned_off() -> None:
    logger = logging.getLogger("vllm.symmem")
    logger.addHandler(Lines())
    logger.setLevel(logging.INFO)
    os.environ["VLLM_PLUGINS"] = "symmem"
    os.environ["SYMMEM_VLLM"] = "0"
    state.init_distributed_environment(SIZE, RANK, "env://", RANK, "gloo")
    load()
    group = make("tp")
    assert type(group.device_communicator).__name__ == "CpuCommunicator"
    equal(group.all_reduce(own()), torch.full((4, 6), TOTAL))
    assert not session.runtimes
    assert lines == ["symmem leaves all groups to vLLM: SYMMEM_VLLM=0"], lines
    group.destroy()


@check
def a_missing_library_on_one_rank_leaves_the_group_to_the_engine() -> None:
    del os.environ["SYMMEM_VLLM"]
    load()
    load()  # vLLM may load plug-ins more than once.

    def missing() -> Any:
        raise errors.LibraryError("libsymmem.so: not found")

    found = takeover.library
    if RANK == SIZE - 1:
        takeover.library = missing  # type: ignore[assignment]
    try:
        group = make("tp")
    finally:
        takeover.library = found
    reason = f"rank {SIZE - 1}: libsymmem.so: not found"
    assert group.device_communicator.takeover.reason == reason
    if RANK == 0:
        assert lines[-1] == f"symmem leaves the group tp:1 to vLLM: {reason}", lines
    equal(group.all_reduce(own()), torch.full((4, 6), TOTAL))
    raises(NotImplementedError, lambda: group.all_gatherv(own(), 0, None))
    group.destroy()


@check
def symmem_runs_the_calls_of_a_group() -> None:
    global tp
    tp = make("tp")
    assert type(tp.device_communicator).__name__ == "SymmemCpuCommunicator"
    if RANK == 0:
        assert lines[-1].startswith("symmem runs all_reduce, all_gather, "), lines
    x = own()
    equal(counted(tp, 1, lambda: tp.all_reduce(x)), torch.full((4, 6), TOTAL))
    equal(x, own())
    every = torch.cat([torch.full((4, 6), r + 1.0) for r in range(SIZE)], 1)
    equal(counted(tp, 1, lambda: tp.all_gather(own(), -1)), every)
    equal(counted(tp, 1, lambda: tp.all_gather(own((2, 3)), 0))[2 * RANK], own((3,)))
    mine = torch.full((4, 6 // SIZE), TOTAL)
    equal(counted(tp, 1, lambda: tp.reduce_scatter(own(), -1)), mine)
    equal(counted(tp, 1, lambda: tp.broadcast(own(), SIZE - 1)), torch.full((4, 6), SIZE + 0.0))


@check
def symmem_runs_expert_exchanges() -> None:
    rows = own((ROWS[RANK], 3))
    every = torch.cat([torch.full((n, 3), r + 1.0) for r, n in enumerate(ROWS)])
    ids = rows.to(torch.int32)
    found = counted(tp, 1, lambda: tp.all_gatherv([rows, ids], 0, ROWS))
    equal(found[0], every)
    equal(found[1], every.to(torch.int32))
    equal(counted(tp, 1, lambda: tp.all_gatherv(own(), 0, [4] * SIZE))[4 * RANK], own((6,)))
    none = [3, *[0] * (SIZE - 1)]  # Only the first rank has tokens.
    equal(
        counted(tp, 1, lambda: tp.all_gatherv([own((none[RANK], 3))], 0, none))[0], torch.ones(3, 3)
    )
    total = torch.full((ROWS[RANK], 3), TOTAL)
    whole = own((sum(ROWS), 3))
    equal(counted(tp, 1, lambda: tp.reduce_scatterv(whole, 0, ROWS)), total)
    room = tp.device_communicator.get_symmetric_memory_buffer(
        "moe_ag_rs_combine", (2 * SIZE, 3), torch.float32, torch.device("cpu")
    )
    assert symmem.is_symmetric(room, tp.device_communicator.takeover.group)
    output = torch.empty(2, 3)
    run = tp.reduce_scatterv_into_output
    equal(counted(tp, 1, lambda: run(room.fill_(RANK + 1.0), output, 0, [2] * SIZE)), output)
    equal(output, torch.full((2, 3), TOTAL))


@check
def symmem_sends_and_receives() -> None:
    before = calls(tp)
    tp.send(own())
    source = (RANK - 1) % SIZE
    equal(tp.recv(torch.Size((4, 6)), torch.float32), torch.full((4, 6), source + 1.0))
    assert calls(tp) == before + 2


@check
def memory_can_be_released_and_restored() -> None:
    found = tp.device_communicator.takeover
    tensor = found.scratch.tensor(("suspension",), (4, 6), torch.float32)

    state.suspend_device_comms()
    raises(errors.SuspendedError, lambda: symmem.all_reduce(tensor, group=found.group))
    state._apply_to_device_comms(lambda c: c.checkpoint_prepare())  # of a sleeping worker
    state._apply_to_device_comms(lambda c: c.checkpoint_restore())
    raises(errors.SuspendedError, lambda: symmem.all_reduce(tensor, group=found.group))
    state.resume_device_comms()
    state.resume_device_comms()  # vLLM may wake up in several steps.
    assert not tensor.any()
    tp.device_communicator.checkpoint_prepare()
    raises(errors.SuspendedError, lambda: symmem.all_reduce(tensor, group=found.group))
    tp.device_communicator.checkpoint_restore()
    equal(counted(tp, 1, lambda: tp.all_reduce(own())), torch.full((4, 6), TOTAL))


@check
def compiled_code_calls_symmem() -> None:
    def layer(x: torch.Tensor) -> torch.Tensor:
        y = tp.all_reduce(x @ torch.eye(6)) * 2
        return tp.all_gather(tp.reduce_scatter(y, -1), -1) + x

    want = torch.full((4, 6), 2 * TOTAL * SIZE + RANK + 1.0)
    for backend in ("aot_eager", "inductor"):
        torch._dynamo.reset()
        run = torch.compile(layer, backend=backend, fullgraph=True)
        for _ in range(2):
            equal(counted(tp, 3, lambda run=run: run(own())), want)


@check
def compiled_norms_run_on_symmem() -> None:
    from torch._inductor import config
    from vllm import ir

    from symmem.engines import vllm_norm

    given = SimpleNamespace(
        splitting_ops=None, use_inductor_graph_partition=False, pass_config=None
    )
    norms = vllm_norm.NormPass(
        SimpleNamespace(compilation_config=given, model_config=None, device_config=None),
        tp.unique_name,
    )
    weight = torch.linspace(0.5, 1.5, 64).bfloat16()
    residual = torch.linspace(-3, 3, 4 * 64).view(4, 64).bfloat16()

    def layers(x: torch.Tensor, residual: torch.Tensor) -> Any:
        reduced = torch.ops.vllm.all_reduce(x, tp.unique_name)
        normed, residual = ir.ops.fused_add_rms_norm(reduced, residual, weight, 1e-6)
        reduced = torch.ops.vllm.all_reduce(normed, tp.unique_name)
        return ir.ops.rms_norm(reduced, weight, 1e-5), reduced, residual

    x = own((4, 64)).bfloat16()
    want = layers(x, residual)
    # With a cached graph, Inductor would not call the pass.
    with config.patch(post_grad_custom_post_pass=norms, force_disable_caches=True):
        torch._dynamo.reset()
        run = torch.compile(layers, fullgraph=True)
        run(x, residual)
        assert norms.matched_count == 2, norms.matched_count
        got = counted(tp, 2, lambda: run(x, residual))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.float(), b.float(), rtol=0.02, atol=0.02)


@check
def unsupported_types_are_left_to_vllm() -> None:
    x = torch.ones(4, dtype=torch.complex64)
    equal(counted(tp, 0, lambda: tp.all_reduce(x)), torch.full((4,), SIZE + 0j))


@check
def batch_invariance_requires_deterministic_sums() -> None:
    os.environ["VLLM_BATCH_INVARIANT"] = "1"
    try:
        group = make("tp")
    finally:
        del os.environ["VLLM_BATCH_INVARIANT"]
    assert "SYMMEM_DETERMINISTIC" in group.device_communicator.takeover.reason
    equal(group.all_reduce(own()), torch.full((4, 6), TOTAL))
    group.destroy()


@check
def the_program_can_initialize_symmem_itself() -> None:
    world = symmem.init(backend="host", timeout=60)
    x = own()
    symmem.all_reduce(x)
    equal(x, torch.full((4, 6), TOTAL))
    assert world is not tp.device_communicator.takeover.group
    symmem.finalize()
    equal(counted(tp, 1, lambda: tp.all_reduce(own())), torch.full((4, 6), TOTAL))


@check
def destroying_a_group_closes_it() -> None:
    group = tp.device_communicator.takeover.group
    tp.destroy()
    assert group.closed


tp: Any = None

if __name__ == "__main__":
    main()
