"""Tests SGLang's groups with symmem's plug-in, using the wheel's Python files on CPUs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import engine_stubs
import torch
from harness import RANK, SIZE, check, main, raises

engine_stubs.install()
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "0"

import sglang.srt.distributed.parallel_state as state  # noqa: E402
from sglang.srt import plugins  # noqa: E402

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


def make(name: str) -> Any:
    """Create a group as SGLang's schedulers do on machines without NCCL."""
    return state.init_model_parallel_group(
        [list(range(SIZE))],
        RANK,
        "gloo",
        use_pynccl=False,
        use_custom_allreduce=False,
        group_name=name,
    )


def load() -> None:
    """Load plug-ins through the entry point, as SGLang's processes do."""
    plugins._plugins_loaded = False
    plugins.load_plugins()


def own(shape: tuple[int, ...] = (4, 6)) -> torch.Tensor:
    return torch.full(shape, RANK + 1.0)


def calls(group: Any) -> int:
    """Return the number of calls that symmem has run for a group."""
    world = group.symmem.group
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
def the_plug_in_for_sglang_can_be_turned_off() -> None:
    logger = logging.getLogger("sglang.symmem")
    logger.addHandler(Lines())
    logger.setLevel(logging.INFO)
    os.environ["SYMMEM_SGLANG"] = "0"
    load()
    state.init_distributed_environment(SIZE, RANK, "env://", RANK, "gloo")
    group = make("tp")
    assert not hasattr(group, "symmem")
    equal(group.all_reduce(own()), torch.full((4, 6), TOTAL))
    assert not session.runtimes
    assert lines == ["symmem leaves all groups to SGLang: SYMMEM_SGLANG=0"], lines
    group.destroy()


@check
def a_missing_library_on_one_rank_leaves_the_group_to_the_engine() -> None:
    del os.environ["SYMMEM_SGLANG"]
    load()
    load()

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
    assert group.symmem.reason == reason
    if RANK == 0:
        assert lines[-1] == f"symmem leaves the group tp:1 to SGLang: {reason}", lines
    equal(group.all_reduce(own()), torch.full((4, 6), TOTAL))
    raises(AttributeError, lambda: group.all_gatherv(own(), None))
    group.destroy()


@check
def symmem_runs_the_calls_of_a_group() -> None:
    global tp
    tp = make("tp")
    if RANK == 0:
        assert lines[-1].startswith("symmem runs all_reduce, all_gather, "), lines
    equal(counted(tp, 1, lambda: tp.all_reduce(own())), torch.full((4, 6), TOTAL))
    x = own()
    equal(counted(tp, 1, lambda: tp._all_reduce_out_place(x, "auto")), torch.full((4, 6), TOTAL))
    equal(x, own())
    counted(tp, 1, lambda: tp._all_reduce_in_place(x))
    equal(x, torch.full((4, 6), TOTAL))
    every = torch.cat([torch.full((4, 6), r + 1.0) for r in range(SIZE)], 1)
    equal(counted(tp, 1, lambda: tp.all_gather(own(), -1)), every)
    mine = torch.full((4, 6 // SIZE), TOTAL)
    equal(counted(tp, 1, lambda: tp.reduce_scatter_along_dim(own(), -1)), mine)
    equal(counted(tp, 1, lambda: tp.broadcast(own(), SIZE - 1)), torch.full((4, 6), SIZE + 0.0))
    # SGLang's operator around this method exists only on GPUs.
    output = torch.empty(2 * SIZE, 3)
    counted(tp, 1, lambda: tp._all_to_all_single(output, own((2 * SIZE, 3))))
    equal(output[::2, 0], torch.arange(1.0, SIZE + 1))


@check
def symmem_runs_expert_exchanges() -> None:
    rows = own((ROWS[RANK], 3))
    every = torch.cat([torch.full((n, 3), r + 1.0) for r, n in enumerate(ROWS)])
    ids = rows.to(torch.int32)
    found = counted(tp, 1, lambda: tp.all_gatherv([rows, ids], ROWS))
    equal(found[0], every)
    equal(found[1], every.to(torch.int32))
    room = torch.empty_like(every)
    (found,) = counted(tp, 1, lambda: tp.all_gatherv(rows, ROWS, room))
    assert found is room
    equal(room, every)
    none = [3, *[0] * (SIZE - 1)]  # Only the first rank has tokens.
    equal(counted(tp, 1, lambda: tp.all_gatherv([own((none[RANK], 3))], none))[0], torch.ones(3, 3))
    total = torch.full((ROWS[RANK], 3), TOTAL)
    whole = own((sum(ROWS), 3))
    equal(counted(tp, 1, lambda: tp.reduce_scatterv(whole, sizes=ROWS)), total)
    output = torch.empty(2, 3)
    counted(tp, 1, lambda: tp.reduce_scatterv(own((2 * SIZE, 3)), output))
    equal(output, torch.full((2, 3), TOTAL))


@check
def symmem_sends_and_receives() -> None:
    before = calls(tp)
    tp.send(own())
    source = (RANK - 1) % SIZE
    equal(tp.recv(torch.Size((4, 6)), torch.float32), torch.full((4, 6), source + 1.0))
    assert calls(tp) == before + 2


@check
def compiled_code_calls_symmem() -> None:
    def layer(x: torch.Tensor) -> torch.Tensor:
        y = tp.all_reduce(x @ torch.eye(6)) * 2
        return tp.all_gather(tp.reduce_scatter_along_dim(y, -1), -1) + x

    want = torch.full((4, 6), 2 * TOTAL * SIZE + RANK + 1.0)
    for backend in ("aot_eager", "inductor"):
        torch._dynamo.reset()
        run = torch.compile(layer, backend=backend, fullgraph=True)
        for _ in range(2):
            equal(counted(tp, 3, lambda run=run: run(own())), want)


@check
def symmem_runs_fused_norms() -> None:
    from sglang.srt.layers import flashinfer_comm_fusion as fusion

    resolve = fusion.resolve_fusion_group
    fusion.resolve_fusion_group = lambda *, use_attn_tp_group: (SIZE, RANK, tp)
    call = fusion.flashinfer_allreduce_residual_rmsnorm
    weight = torch.linspace(0.5, 1.5, 64, dtype=torch.bfloat16)
    residual = torch.linspace(-3, 3, 4 * 64).view(4, 64).bfloat16()
    before = residual.clone()
    want = residual + TOTAL
    scaled = want.float() * torch.rsqrt(want.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    try:
        x = own((4, 64)).bfloat16()
        normed, added = counted(
            tp, 1, lambda: call(input_tensor=x, residual=residual, weight=weight, eps=1e-6)
        )
        equal(added, want)
        equal(residual, before)
        torch.testing.assert_close(normed.float(), scaled * weight.float(), rtol=0.01, atol=0.01)
        # symmem leaves other types to SGLang, whose operator exists only on GPUs.
        raises(NotImplementedError, lambda: call(x.float(), residual.float(), weight.float()))
    finally:
        fusion.resolve_fusion_group = resolve


@check
def sglang_scopes_open_symmem_scopes() -> None:
    from sglang.srt.distributed.device_communicators import pynccl_allocator as pool

    enabled = pool.is_symmetric_memory_enabled
    pool.is_symmetric_memory_enabled = lambda: True
    try:
        with pool.use_symmetric_memory(tp):
            x = symmem.empty(4, 6)
        with pool.use_symmetric_memory(tp, disabled=True):
            y = torch.empty(4, 6)
    finally:
        pool.is_symmetric_memory_enabled = enabled
    assert pool.is_tensor_in_symmetric_mempool(x)
    assert not pool.is_tensor_in_symmetric_mempool(y)


@check
def deterministic_inference_requires_deterministic_sums() -> None:
    os.environ["SGLANG_ENABLE_DETERMINISTIC_INFERENCE"] = "1"
    try:
        group = make("tp")
    finally:
        del os.environ["SGLANG_ENABLE_DETERMINISTIC_INFERENCE"]
    assert "SYMMEM_DETERMINISTIC" in group.symmem.reason
    equal(group.all_reduce(own()), torch.full((4, 6), TOTAL))
    group.destroy()


@check
def destroying_a_group_closes_it() -> None:
    group = tp.symmem.group
    tp.destroy()
    assert group.closed


tp: Any = None

if __name__ == "__main__":
    main()
