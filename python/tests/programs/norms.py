"""The fused norm, against what PyTorch computes. It runs on GPUs, or on the host backend."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from harness import ON_GPU, RANK, SIZE, check, device, main, raises

import symmem

# Otherwise inductor starts six more processes on every rank to find the vector instructions.
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "0"

EPS = 1e-5
DEVICE = device()
BFLOAT16, FLOAT8 = torch.bfloat16, torch.float8_e4m3fn
LARGEST, GROUP = 448.0, 128

norm, norm_fp8 = symmem.all_reduce_rms_norm, symmem.all_reduce_rms_norm_fp8


def reference(
    tensor: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: float = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the norm in three steps, with symmem's all-reduce."""
    y = tensor.clone()
    symmem.all_reduce(y)
    total = residual + y
    wide = total.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS) * (weight.float() + bias)
    return total, scaled.to(tensor.dtype)


def draw(*shape: int, own: bool, dtype: torch.dtype = BFLOAT16) -> torch.Tensor:
    """Draw a tensor that differs between ranks (own) or is equal on all ranks."""
    generator = torch.Generator(DEVICE).manual_seed(sum(shape) + (RANK if own else 1000))
    return torch.randn(*shape, generator=generator, device=DEVICE).to(dtype)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Compare outputs, which may differ by one unit in the last place in a few elements."""
    apart = (got.view(torch.int16).int() - want.view(torch.int16).int()).abs()
    assert int(apart.max()) <= 1
    assert float((apart > 0).float().mean()) < 0.01
    every = [torch.empty_like(got) for _ in range(SIZE)]
    dist.all_gather(every, got)
    assert all(torch.equal(one, got) for one in every), "ranks have different bits"


def quantize(
    rows: torch.Tensor, scale: torch.Tensor | None, group_size: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize normalized rows as the call must, bit by bit."""
    wide = rows.float()
    parts = wide.unflatten(-1, (-1, group_size or wide.shape[-1]))
    if scale is None:
        largest = parts.abs().amax(-1, keepdim=True).clamp(min=1e-10)
        scales = largest / torch.full_like(largest, LARGEST)  # CUDA multiplies by 1 / a number
    else:
        scales = scale.reshape(1).expand(*parts.shape[:-1], 1)
    scaled = parts * (1 / scales)
    return scaled.clamp(-LARGEST, LARGEST).to(FLOAT8).flatten(-2), scales.squeeze(-1)


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Compare float8 tensors bit by bit."""
    return torch.equal(got.view(torch.uint8), want.view(torch.uint8))


@check
def symmem_opens() -> None:
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl" if ON_GPU else "gloo")
    path = os.environ.get("SYMMEM_PATH", "direct" if ON_GPU else "auto")
    symmem.init(backend="nccl" if ON_GPU else "host", timeout=60, path=path)


@check
def norms_equal_three_steps() -> None:
    for shape in ((1, 4096), (7, 8192), (2, 3, 1024), (100, 2048), (1, 16384), (5, 8)):
        for dtype, bias in ((BFLOAT16, 0.0), (torch.float16, 1.0)):
            tensor = draw(*shape, own=True, dtype=dtype)
            residual = draw(*shape, own=False, dtype=dtype)
            weight = draw(shape[-1], own=False, dtype=dtype)
            total, want = reference(tensor, residual, weight, bias)
            kept = tensor.clone()
            got = norm(tensor, residual, weight, EPS, weight_bias=bias)
            assert torch.equal(residual, total), shape
            assert torch.equal(tensor, kept), shape
            close(got, want)


KINDS: tuple[dict[str, Any], ...] = (
    {"scale": torch.tensor(0.02, device=DEVICE)},
    {},
    {"group_size": GROUP},
)


@check
def norms_are_quantized() -> None:
    for kind in KINDS:
        for shape in ((1, 4096), (2, 3, 1024), (50, 256)):
            tensor, residual = draw(*shape, own=True), draw(*shape, own=False)
            weight, out = draw(shape[-1], own=False), torch.empty_like(tensor)
            total, want = reference(tensor, residual, weight)
            other = residual.clone()
            got, scales = norm_fp8(tensor, residual, weight, EPS, out=out, **kind)
            assert torch.equal(residual, total), (kind, shape)
            close(out, want)
            want, wanted = quantize(out, kind.get("scale"), kind.get("group_size"))
            assert got.dtype is FLOAT8
            assert same(got, want), (kind, shape)
            if "scale" in kind:
                assert scales is kind["scale"]
            else:
                assert scales.shape == wanted.shape
                assert torch.equal(scales, wanted), (kind, shape)
            # The same without the rows in 16 bits.
            again, _ = norm_fp8(tensor.clone(), other, weight, EPS, **kind)
            assert same(again, got), (kind, shape)
            assert torch.equal(other, total), (kind, shape)


@check
def scales_have_any_strides() -> None:
    rows, groups = 6, 4
    shape = (rows, groups * GROUP)
    tensor, weight = draw(*shape, own=True), draw(shape[-1], own=False)
    _, want = norm_fp8(tensor.clone(), draw(*shape, own=False), weight, EPS, group_size=GROUP)
    for scales in (
        torch.empty(groups, rows, device=DEVICE).t(),
        torch.empty(groups, rows + 2, device=DEVICE)[:, :rows].t(),
        torch.empty(rows, groups + 3, device=DEVICE)[:, 1 : groups + 1],
    ):
        residual = draw(*shape, own=False)
        _, got = norm_fp8(tensor.clone(), residual, weight, EPS, group_size=GROUP, scales=scales)
        assert got is scales
        assert torch.equal(scales, want), scales.stride()


@check
def empty_tensors_are_normalized() -> None:
    tensor, weight = torch.empty(0, 256, dtype=BFLOAT16, device=DEVICE), draw(256, own=False)
    assert norm(tensor, tensor.clone(), weight, EPS).shape == (0, 256)
    got, scales = norm_fp8(tensor, tensor.clone(), weight, EPS, group_size=GROUP)
    assert (got.shape, scales.shape) == ((0, 256), (0, 2))


@check
def mismatched_tensors_are_refused() -> None:
    good, weight = draw(2, 256, own=False), draw(256, own=False)
    for tensor, residual, scale, text in (
        (good.float(), good.clone(), weight, "want bfloat16 or float16"),
        (good, good.half(), weight, "residual has dtype torch.float16"),
        (good, good[:1].clone(), weight, "residual has shape (1, 256)"),
        (good, good.clone(), weight[:32], "weight has shape (32,)"),
        (good.t(), good.t(), weight[:2], "pass tensor.contiguous()"),
        (good, good, weight, "overlaps the input"),
        (good, good.clone(), weight.float(), "weight has dtype torch.float32"),
        (good, good.clone(), None, "weight is a NoneType"),
    ):
        e = raises(symmem.InvalidError, lambda t=tensor, r=residual, s=scale: norm(t, r, s, EPS))
        assert text in str(e), e
    for hidden in (0, 12, 20000):
        rows = draw(2, hidden, own=False)
        e = raises(symmem.InvalidError, lambda r=rows: norm(r, r.clone(), r[0].clone(), EPS))
        assert f"rows have {hidden} elements" in str(e), e
    full, options = torch.full, {"device": DEVICE}
    for more, text in (
        ({"scale": full((2,), 1.0, **options)}, "scale has 2 elements"),
        (
            {"scale": full((1,), 1.0, **options), "group_size": GROUP},
            "cannot be combined with group_size",
        ),
        ({"scale": full((1,), 1.0, **options).half()}, "scale has dtype torch.float16"),
        ({"scale": 0.5}, "scale is a float"),
        ({"group_size": 64}, "group_size is 64"),
        ({"scales": torch.empty(2, **options)}, "scales has shape (2,); want (2, 1)"),
        ({"scales": torch.empty(2, 1, **options).half()}, "scales has dtype torch.float16"),
        ({"scales": torch.empty(1, 1, **options).expand(2, 1)}, "expanded tensor"),
        ({"quantized": torch.empty(2, 256, **options)}, "quantized has dtype torch.float32"),
        (
            {"quantized": torch.empty(1, 256, dtype=FLOAT8, **options)},
            "quantized has shape (1, 256)",
        ),
        ({"out": good.half()}, "out has dtype torch.float16"),
        ({"weight_bias": 2.0}, "weight bias 2"),
    ):
        e = raises(
            symmem.InvalidError,
            lambda m=more: norm_fp8(good.clone(), good.clone(), weight, EPS, **m),
        )
        assert text in str(e), e
    if ON_GPU:
        large = draw(5000, 4096, own=False)
        weight = draw(4096, own=False)
        raises(symmem.UnsupportedError, lambda: norm(large, large.clone(), weight, EPS))


def layer_of(options: dict[str, Any]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return the end of a layer: a product, then the norm of the sum of the products."""

    def layer(
        x: torch.Tensor, w: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        residual = residual + 0
        if options.get("plain"):
            return norm(x @ w, residual, weight, EPS, weight_bias=1.0), residual
        got, scales = norm_fp8(x @ w, residual, weight, EPS, **options)
        return got.view(torch.uint8), scales + 0, residual

    return layer


@check
def compiled_norms_equal_eager_ones() -> None:
    x, w = draw(4, 64, own=True), draw(64, 256, own=True)
    residual, weight = draw(4, 256, own=False), draw(256, own=False)
    for options in ({"plain": True}, *KINDS):
        layer = layer_of(options)
        want = layer(x, w, residual, weight)
        for backend in ("aot_eager", "inductor"):
            torch._dynamo.reset()
            run = torch.compile(layer, backend=backend, fullgraph=True)
            got = run(x, w, residual, weight)
            for one, other in zip(got, want, strict=True):
                assert torch.equal(one, other), (options, backend)


@check
def operators_have_correct_schemas() -> None:
    tensor, residual = draw(4, 256, own=True), draw(4, 256, own=False)
    weight, out = draw(256, own=False), torch.empty_like(tensor)
    quantized = torch.empty(4, 256, dtype=FLOAT8, device=DEVICE)
    scale, scales = torch.ones(1, device=DEVICE), torch.empty(4, 2, device=DEVICE)
    ops = torch.ops.symmem
    for op, arguments in (
        (ops.all_reduce_rms_norm_, (out, residual, tensor, weight, EPS, "world")),
        (
            ops.all_reduce_rms_norm_static_fp8_,
            (quantized, residual, tensor, weight, scale, EPS, "world"),
        ),
        (
            ops.all_reduce_rms_norm_dynamic_fp8_,
            (quantized, scales, residual, tensor, weight, GROUP, EPS, "world", 1.0, out),
        ),
    ):
        torch.library.opcheck(op.default, arguments, test_utils="test_faketensor")
        # PyTorch's own check of schemas cannot compare float8.
        before = [bits(a) for a in arguments]
        op(*arguments)
        declared = [a.alias_info is not None for a in op.default._schema.arguments]
        for was, now, written in zip(before, arguments, declared, strict=False):
            assert written or was is None or torch.equal(was, bits(now)), op


def bits(argument: object) -> torch.Tensor | None:
    """Copy the bytes of an argument, if it is a tensor."""
    if not isinstance(argument, torch.Tensor):
        return None
    return argument.view(torch.uint8).clone()


@check
def mismatched_tensors_do_not_compile() -> None:
    x, w = draw(4, 64, own=True), draw(64, 256, own=True)
    residual, weight = draw(4, 256, own=False), draw(256, own=False).float()
    run = torch.compile(layer_of({"plain": True}), backend="aot_eager", fullgraph=True)
    e = raises(Exception, lambda: run(x, w, residual, weight))
    assert "weight has dtype torch.float32" in str(e), e


def unfused(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    total = torch.ops.symmem.all_reduce(x, "sum", "world") + residual
    wide = total.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return (wide * scale * weight.float()).to(x.dtype), total


def fused(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    from torch._higher_order_ops.auto_functionalize import auto_functionalized

    at = auto_functionalized(
        torch.ops.symmem.all_reduce_rms_norm_.default,
        output=torch.empty_like(x),
        residual=residual,
        input=x,
        weight=weight,
        eps=EPS,
        group="world",
    )
    return at[1], at[2]


@check
def a_pattern_matcher_fuses_the_steps() -> None:
    from torch._inductor import pattern_matcher as matcher

    patterns = matcher.PatternMatcherPass()
    example = [draw(4, 256, own=False), draw(4, 256, own=False), draw(256, own=False)]
    matcher.register_replacement(unfused, fused, example, matcher.fwd_only, patterns)
    fusions = []

    def replace(graph: torch.fx.Graph) -> None:
        fusions.append(patterns.apply(graph))

    x, residual, weight = draw(4, 256, own=True), *example[1:]
    torch._dynamo.reset()
    with torch._inductor.config.patch(
        post_grad_custom_post_pass=replace, force_disable_caches=True
    ):
        run = torch.compile(unfused, backend="inductor", fullgraph=True)
        got, total = run(x, residual, weight)
    assert fusions == [1], fusions
    kept = residual.clone()
    assert torch.equal(got, norm(x, kept, weight, EPS))
    assert torch.equal(total, kept)


@check
def graphs_hold_norms() -> None:
    if not ON_GPU:
        return
    tensor, weight = draw(4, 4096, own=True), draw(4096, own=False)
    start, residual = draw(4, 4096, own=False), torch.empty(4, 4096).bfloat16().to(DEVICE)
    total, want = reference(tensor, start, weight)
    out = torch.empty_like(tensor)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        residual.copy_(start)
        norm(tensor, residual, weight, EPS, out=out)
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(residual, total)
    close(out, want)


@check
def symmem_finalizes() -> None:
    symmem.finalize()
    dist.destroy_process_group()


main()
