"""Norms of a reduce-scatter, against those of an all-reduce, which have the same bits."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from harness import ON_GPU, RANK, SIZE, check, device, main, raises

import symmem

# Otherwise inductor starts six more processes on every rank to find the vector instructions.
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "0"

EPS = 1e-5
DEVICE = device()
FLOAT8, GROUP = torch.float8_e4m3fn, 128

norm, norm_fp8 = symmem.reduce_scatter_rms_norm, symmem.reduce_scatter_rms_norm_fp8

KINDS: tuple[dict[str, Any], ...] = (
    {"scale": torch.tensor(0.02, device=DEVICE)},
    {},
    {"group_size": GROUP},
)


def draw(*shape: int, own: bool, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Draw a tensor that differs between ranks (own) or is equal on all ranks."""
    generator = torch.Generator(DEVICE).manual_seed(sum(shape) + (RANK if own else 1000))
    return torch.randn(*shape, generator=generator, device=DEVICE).to(dtype)


def part(tensor: torch.Tensor) -> torch.Tensor:
    """Copy this rank's rows."""
    return tensor.chunk(SIZE)[RANK].clone()


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Compare tensors bit by bit."""
    return torch.equal(got.view(torch.uint8), want.view(torch.uint8))


@check
def symmem_opens() -> None:
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl" if ON_GPU else "gloo")
    path = os.environ.get("SYMMEM_PATH", "direct" if ON_GPU else "auto")
    symmem.init(backend="nccl" if ON_GPU else "host", timeout=60, path=path)


@check
def rows_have_the_bits_of_an_all_reduce() -> None:
    for rows, *others in ((1, 4096), (7, 8192), (3, 2, 1024), (100, 2048), (1, 16384), (5, 8)):
        shape = (rows * SIZE, *others)
        for dtype, bias in ((torch.bfloat16, 0.0), (torch.float16, 1.0)):
            tensor = draw(*shape, own=True, dtype=dtype)
            whole = draw(*shape, own=False, dtype=dtype)
            weight = draw(shape[-1], own=False, dtype=dtype)
            residual, kept = part(whole), tensor.clone()
            got = norm(tensor, residual, weight, EPS, weight_bias=bias)
            assert torch.equal(tensor, kept), shape
            want = symmem.all_reduce_rms_norm(tensor, whole, weight, EPS, weight_bias=bias)
            assert torch.equal(got, part(want)), shape
            assert torch.equal(residual, part(whole)), shape
            # The result may replace this rank's part of the input.
            residual -= residual
            again = norm(tensor, residual, weight, EPS, out=tensor.chunk(SIZE)[RANK])
            assert again.data_ptr() == tensor.chunk(SIZE)[RANK].data_ptr()
            assert torch.equal(tensor.chunk(SIZE)[RANK - 1], kept.chunk(SIZE)[RANK - 1]), shape


@check
def rows_are_quantized() -> None:
    for kind in KINDS:
        for rows, hidden in ((SIZE, 4096), (50 * SIZE, 256)):
            tensor, whole = draw(rows, hidden, own=True), draw(rows, hidden, own=False)
            weight, residual = draw(hidden, own=False), part(whole)
            got, scales = norm_fp8(tensor.clone(), residual, weight, EPS, **kind)
            out = torch.empty_like(tensor)
            want, wanted = symmem.all_reduce_rms_norm_fp8(
                tensor, whole, weight, EPS, out=out, **kind
            )
            assert got.dtype is FLOAT8
            assert same(got, part(want)), (kind, rows)
            assert torch.equal(residual, part(whole)), (kind, rows)
            if "scale" in kind:
                assert scales is kind["scale"]
            else:
                assert torch.equal(scales, part(wanted)), (kind, rows)
            rows_out = part(out)
            again, _ = norm_fp8(tensor, residual - residual, weight, EPS, out=rows_out, **kind)
            assert (again.shape, rows_out.shape) == (got.shape, residual.shape)


@check
def float8_rows_and_scales_are_gathered_in_one_call() -> None:
    rows, hidden = 3 * SIZE, 4 * GROUP
    tensor, whole = draw(rows, hidden, own=True), draw(rows, hidden, own=False)
    weight, residual = draw(hidden, own=False), part(whole)
    got = norm_fp8(tensor.clone(), residual, weight, EPS, group_size=GROUP)
    every = [torch.empty(rows, hidden, dtype=FLOAT8, device=DEVICE)]
    every.append(torch.empty(rows, hidden // GROUP, device=DEVICE))
    symmem.all_gather_v_list(every, got, [rows // SIZE] * SIZE)
    want = symmem.all_reduce_rms_norm_fp8(tensor, whole, weight, EPS, group_size=GROUP)
    assert all(same(one, other) for one, other in zip(every, want, strict=True))


@check
def empty_tensors_are_normalized() -> None:
    tensor, weight = draw(0, 256, own=True), draw(256, own=False)
    assert norm(tensor, tensor.clone(), weight, EPS).shape == (0, 256)
    got, scales = norm_fp8(tensor, tensor.clone(), weight, EPS, group_size=GROUP)
    assert (got.shape, scales.shape) == ((0, 256), (0, 2))


@check
def mismatched_tensors_are_refused() -> None:
    good, weight = draw(2 * SIZE, 256, own=True), draw(256, own=False)
    rows = part(good)
    for tensor, residual, out, text in (
        (good[:-1], rows, None, f"whose rows {SIZE} ranks cannot divide evenly; pad it"),
        (good.flatten(), rows, None, "cannot divide evenly"),
        (good, good.clone(), None, "but this rank's part of tensor has (2, 256)"),
        (good, rows[:1], None, "residual has shape (1, 256)"),
        (good, rows.half(), None, "residual has dtype torch.float16"),
        (good, rows, good.clone(), f"out has shape ({2 * SIZE}, 256)"),
        (good, rows, good[1:3], "overlap"),
    ):
        e = raises(
            symmem.InvalidError,
            lambda t=tensor, r=residual, o=out: norm(t, r, weight, EPS, out=o),
        )
        assert text in str(e), e
    scales = torch.empty(2 * SIZE, 2, device=DEVICE)
    e = raises(
        symmem.InvalidError,
        lambda: norm_fp8(good, rows, weight, EPS, group_size=GROUP, scales=scales),
    )
    assert "want (2, 2)" in str(e), e
    if ON_GPU:
        large, weight = draw(8000, 4096, own=False), draw(4096, own=False)
        raises(symmem.UnsupportedError, lambda: norm(large, part(large), weight, EPS))


@check
def compiled_norms_equal_eager_ones() -> None:
    x, w = draw(2 * SIZE, 64, own=True), draw(64, 256, own=True)
    start, weight = draw(2, 256, own=True), draw(256, own=False)
    for options in (None, *KINDS):

        def layer(*inputs: torch.Tensor, options: Any = options) -> tuple[torch.Tensor, ...]:
            x, w, residual, weight = inputs
            residual = residual + 0
            if options is None:
                return norm(x @ w, residual, weight, EPS, weight_bias=1.0), residual
            got, scales = norm_fp8(x @ w, residual, weight, EPS, **options)
            return got.view(torch.uint8), scales + 0, residual

        want = layer(x, w, start, weight)
        for backend in ("aot_eager", "inductor"):
            torch._dynamo.reset()
            run = torch.compile(layer, backend=backend, fullgraph=True)
            got = run(x, w, start, weight)
            for one, other in zip(got, want, strict=True):
                assert torch.equal(one, other), (options, backend)


@check
def mismatched_tensors_do_not_compile() -> None:
    x, weight = draw(2 * SIZE, 256, own=True), draw(256, own=False)
    run = torch.compile(norm, backend="aot_eager", fullgraph=True)
    e = raises(Exception, lambda: run(x, x.clone(), weight, EPS))
    assert "this rank's part of tensor has" in str(e), e


@check
def operators_have_correct_schemas() -> None:
    tensor, residual = draw(4 * SIZE, 256, own=True), draw(4, 256, own=True)
    weight, out = draw(256, own=False), torch.empty_like(residual)
    quantized = torch.empty(4, 256, dtype=FLOAT8, device=DEVICE)
    scale, scales = torch.ones(1, device=DEVICE), torch.empty(4, 2, device=DEVICE)
    ops = torch.ops.symmem
    for op, arguments in (
        (ops.reduce_scatter_rms_norm_, (out, residual, tensor, weight, EPS, "world")),
        (
            ops.reduce_scatter_rms_norm_static_fp8_,
            (quantized, residual, tensor, weight, scale, EPS, "world"),
        ),
        (
            ops.reduce_scatter_rms_norm_dynamic_fp8_,
            (quantized, scales, residual, tensor, weight, GROUP, EPS, "world", 1.0, out),
        ),
    ):
        torch.library.opcheck(op.default, arguments, test_utils="test_faketensor")
        # PyTorch's own check of schemas cannot compare float8.
        before = [
            a.view(torch.uint8).clone() if isinstance(a, torch.Tensor) else None for a in arguments
        ]
        op(*arguments)
        declared = [a.alias_info is not None for a in op.default._schema.arguments]
        for was, now, written in zip(before, arguments, declared, strict=False):
            assert written or was is None or torch.equal(was, now.view(torch.uint8)), op


@check
def graphs_hold_norms() -> None:
    if not ON_GPU:
        return
    tensor, weight = draw(4 * SIZE, 4096, own=True), draw(4096, own=False)
    start, residual = draw(4, 4096, own=True), torch.empty(4, 4096).bfloat16().to(DEVICE)
    out = torch.empty_like(residual)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        residual.copy_(start)
        norm(tensor, residual, weight, EPS, out=out)
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    kept = start.clone()
    assert torch.equal(out, norm(tensor, kept, weight, EPS))
    assert torch.equal(residual, kept)


@check
def symmem_finalizes() -> None:
    symmem.finalize()
    dist.destroy_process_group()


main()
