"""All-reduce or reduce-scatter fused with a residual addition, RMSNorm and quantization."""

from __future__ import annotations

import ctypes as c
from typing import TYPE_CHECKING

from symmem import errors
from symmem._api import compiled
from symmem._api.call import Call, checked
from symmem._api.norm_tensors import GROUP, NormTensors, Quant, strides
from symmem._c.arguments import NormArguments
from symmem._rank.session import find, session
from symmem._torch.autograd import refuse
from symmem._torch.pytorch import compiling, modules, pytorch

if TYPE_CHECKING:
    import torch

    from symmem._api.terms import GroupLike
    from symmem._rank.group import Group


def all_reduce_rms_norm(
    tensor: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group: GroupLike = None,
    out: torch.Tensor | None = None,
    weight_bias: float = 0.0,
) -> torch.Tensor:
    """Sum rows across all ranks, add them to a residual, and return the normalized residual.

    The call is equivalent to the following lines. The residual has the same bits. The result may
    differ in the last bit, because the call adds in another order and rounds some products.

        y = all_reduce(tensor)
        residual += y
        r = residual.float()
        scaled = r * torch.rsqrt(r.pow(2).mean(-1, keepdim=True) + eps)
        return (scaled * (weight.float() + weight_bias)).to(tensor.dtype)

    Args:
        tensor: contiguous rows [..., hidden] of bfloat16 or float16. hidden must be a multiple of 8
            and at most 16384. The addresses of all tensors must be multiples of 16.
        residual: a tensor with the shape and dtype of `tensor`, with the same values on all ranks.
            It is updated in place.
        weight: a tensor [hidden] with the dtype of `tensor`.
        eps: the term added to the mean of squares.
        group: any argument that `symmem.group` accepts; the default is the world.
        out: receives the result, and may be `tensor`; the default is a new tensor.
        weight_bias: the term added to each weight; 1 for Gemma.

    Raises:
        UnsupportedError: the GPUs cannot access each other's memory, or the rows have more than
            about 7 MiB and `tensor` or `out` is not symmetric. All ranks get the error. Use the
            lines above instead.
        InvalidError: the shapes or dtypes do not match. The call has had no effect.
    """
    return _norm("all_reduce", tensor, residual, weight, eps, group, out, weight_bias)


def reduce_scatter_rms_norm(
    tensor: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group: GroupLike = None,
    out: torch.Tensor | None = None,
    weight_bias: float = 0.0,
) -> torch.Tensor:
    """Call `all_reduce_rms_norm` for this rank's rows only, as in sequence parallelism.

    The rows have the bits that `all_reduce_rms_norm` computes for them. `all_gather_v_list` gathers
    float8 rows and their scales in one call.

    Args:
        tensor: as in `all_reduce_rms_norm`. Its first dimension is divided among the ranks evenly;
            pad it if necessary.
        residual: this rank's part of the residual, with the shape of the result. It is updated in
            place, and differs between ranks.
        weight: as in `all_reduce_rms_norm`.
        eps: as in `all_reduce_rms_norm`.
        group: as in `all_reduce_rms_norm`.
        out: receives the result, and may be this rank's part of `tensor`; the default is a new
            tensor. It need not be symmetric.
        weight_bias: as in `all_reduce_rms_norm`.

    Raises:
        UnsupportedError: as in `all_reduce_rms_norm`, but only `tensor` must be symmetric.
        InvalidError: the shapes or dtypes do not match. The call has had no effect.
    """
    return _norm("reduce_scatter", tensor, residual, weight, eps, group, out, weight_bias)


def all_reduce_rms_norm_fp8(
    tensor: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group: GroupLike = None,
    scale: torch.Tensor | None = None,
    group_size: int | None = None,
    out: torch.Tensor | None = None,
    quantized: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    weight_bias: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Call `all_reduce_rms_norm`, and quantize the result to float8 (e4m3).

    Each element is divided by its scale and rounded. A computed scale is the largest magnitude of
    the elements that share it, but at least 1e-10, divided by 448.

    Args:
        tensor: as in `all_reduce_rms_norm`. The call may overwrite it, unless `out` is passed.
        residual: as in `all_reduce_rms_norm`.
        weight: as in `all_reduce_rms_norm`.
        eps: as in `all_reduce_rms_norm`.
        group: as in `all_reduce_rms_norm`.
        scale: a float32 tensor with the scale of all elements. By default, scales are computed.
        group_size: 128 for a scale per 128 elements of a row, or None for a scale per row.
        out: receives the normalized rows before quantization. By default they are not stored.
        quantized: receives the float8 rows; the default is a new tensor.
        scales: receives the computed scales in float32, [..., 1] or [..., hidden / 128], with any
            strides: `torch.empty(groups, rows).t()` stores them in column-major order. The default
            is a new tensor.
        weight_bias: as in `all_reduce_rms_norm`.

    Returns:
        The float8 rows, and the scales (or `scale`).
    """
    arguments = tensor, residual, weight, eps, group, scale, group_size
    return _norm_fp8("all_reduce", *arguments, out, quantized, scales, weight_bias)


def reduce_scatter_rms_norm_fp8(
    tensor: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group: GroupLike = None,
    scale: torch.Tensor | None = None,
    group_size: int | None = None,
    out: torch.Tensor | None = None,
    quantized: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    weight_bias: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Call `reduce_scatter_rms_norm`, and quantize as `all_reduce_rms_norm_fp8` does.

    Args:
        tensor: as in `reduce_scatter_rms_norm`. The call may overwrite this rank's part, unless
            `out` is passed.
        residual: as in `reduce_scatter_rms_norm`.
        weight: as in `all_reduce_rms_norm`.
        eps: as in `all_reduce_rms_norm`.
        group: as in `all_reduce_rms_norm`.
        scale: as in `all_reduce_rms_norm_fp8`.
        group_size: as in `all_reduce_rms_norm_fp8`.
        out: as in `all_reduce_rms_norm_fp8`, for this rank's rows.
        quantized: as in `all_reduce_rms_norm_fp8`, for this rank's rows.
        scales: as in `all_reduce_rms_norm_fp8`, for this rank's rows.
        weight_bias: as in `all_reduce_rms_norm`.

    Returns:
        This rank's float8 rows, and the scales (or `scale`).
    """
    arguments = tensor, residual, weight, eps, group, scale, group_size
    return _norm_fp8("reduce_scatter", *arguments, out, quantized, scales, weight_bias)


def _norm(
    sums: str,
    tensor: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group: GroupLike,
    out: torch.Tensor | None,
    weight_bias: float,
) -> torch.Tensor:
    """Make a call. sums is the name of the collective that adds up the rows."""
    torch, name = modules["torch"] if compiling() else pytorch().module, f"{sums}_rms_norm"
    output = torch.empty_like(tensor if sums == "all_reduce" else residual) if out is None else out
    if compiling():
        operator = getattr(compiled.operators(), f"{name}_")
        operator(output, residual, tensor, weight, eps, compiled.group_name(group), weight_bias)
        compiled.finished(False, f"symmem.{name}", [output, residual], [tensor, weight])
    else:
        tensors = NormTensors(tensor, residual, weight, output)
        _run(name, tensors, Quant.NONE, eps, weight_bias, group)
    return output


def _norm_fp8(
    sums: str,
    tensor: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group: GroupLike,
    scale: torch.Tensor | None,
    group_size: int | None,
    out: torch.Tensor | None,
    quantized: torch.Tensor | None,
    scales: torch.Tensor | None,
    weight_bias: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make a call that quantizes."""
    torch = modules["torch"] if compiling() else pytorch().module
    quant = _quant(scale, group_size, scales)
    like = tensor if sums == "all_reduce" else residual
    if quantized is None:
        quantized = torch.empty_like(like, dtype=torch.float8_e4m3fn)
    if scale is not None:
        scales = scale
    elif scales is None:
        groups = like.shape[-1] // GROUP if group_size else 1
        scales = torch.empty(*like.shape[:-1], groups, dtype=torch.float32, device=like.device)
    if not compiling():
        tensors = NormTensors(tensor, residual, weight, out, quantized, scales)
        _run(f"{sums}_rms_norm_fp8", tensors, quant, eps, weight_bias, group)
        return quantized, scales
    name, operators = compiled.group_name(group), compiled.operators()
    writes, reads = [quantized, residual, tensor if out is None else out], [tensor, weight]
    if scale is not None:
        operator = getattr(operators, f"{sums}_rms_norm_static_fp8_")
        operator(quantized, residual, tensor, weight, scale, eps, name, weight_bias, out)
        reads.append(scale)
    else:
        operator = getattr(operators, f"{sums}_rms_norm_dynamic_fp8_")
        operator(
            *(quantized, scales, residual, tensor, weight), group_size, eps, name, weight_bias, out
        )
        writes.append(scales)
    compiled.finished(False, f"symmem.{sums}_rms_norm_fp8", writes, reads)
    return quantized, scales


def _quant(
    scale: torch.Tensor | None, group_size: int | None, scales: torch.Tensor | None
) -> Quant:
    """Return the kind of quantization for the arguments of a call."""
    if group_size not in (None, GROUP):
        raise errors.InvalidError(f"group_size is {group_size}; want {GROUP}, or None for rows")
    if scale is None:
        return Quant.PER_ROW if group_size is None else Quant.PER_GROUP
    if group_size is not None or scales is not None:
        raise errors.InvalidError(
            "scale cannot be combined with group_size or scales, which are for computed scales"
        )
    return Quant.STATIC


def _run(
    name: str,
    tensors: NormTensors,
    quant: Quant,
    eps: float,
    weight_bias: float,
    group: GroupLike,
) -> None:
    """Check the tensors and make the call. name is that of the function."""
    call, scatters = Call(find(group), False), name.startswith("reduce_scatter")
    for each, tensor in tensors.named():
        if not checked(call.group, each, tensor):
            raise errors.InvalidError(f"{each} is not contiguous; pass {each}.contiguous()")
    if tensors.scales is not None:
        call.use("scale" if quant is Quant.STATIC else "scales", tensors.scales)
    tensors.check(quant, call.group.size if scatters else 1)
    symbol = "symmem_scattered_norm" if scatters else "symmem_norm"
    _queue(call, symbol, tensors, quant, eps, weight_bias)
    if any(t is not None and t.requires_grad for t in tensors):
        written = [tensors.residual, tensors.quantized]
        written.append(tensors.tensor if tensors.out is None else tensors.out)
        if quant is not Quant.STATIC:
            written.append(tensors.scales)
        refuse(f"symmem.{name}", [t for t in written if t is not None])


def _queue(
    call: Call, symbol: str, tensors: NormTensors, quant: Quant, eps: float, weight_bias: float
) -> None:
    """Make the call with tensors that were checked. symbol is a function of the library."""
    tensor, residual, weight, out, quantized, scales = tensors
    hidden = weight.numel()
    n = NormArguments(
        c.sizeof(NormArguments),
        residual.numel() // max(hidden, 1),
        hidden,
        pytorch().element(tensor.dtype),
        quant,
        eps,
        weight_bias,
        tensor.data_ptr(),
        residual.data_ptr(),
        weight.data_ptr(),
        None if out is None else out.data_ptr(),
        None if quantized is None else quantized.data_ptr(),
    )
    if scales is not None:
        n.scales = scales.data_ptr()
        if quant is not Quant.STATIC:
            n.scale_strides[:] = strides(scales)
    call.hold(*[t for t in tensors[:-1] if t is not None])
    call.run(symbol, c.byref(n))


def run_checked(
    group: Group, tensor: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Call `all_reduce_rms_norm` without its checks, also without that of gradients."""
    out: torch.Tensor = modules["torch"].empty_like(tensor)
    tensors = NormTensors(tensor, residual, weight, out)
    _queue(Call(group, False), "symmem_norm", tensors, Quant.NONE, eps, 0.0)
    return out


# The operators of torch.ops.symmem, and their checks while a compiler traces them. sums is as in
# _norm.


def _parts(sums: str, group: str) -> int:
    """Return the parts of the input. The group need not be open while a compiler checks."""
    return 1 if sums == "all_reduce" else session.place(group).size


def run_plain(
    sums: str,
    output: torch.Tensor,
    residual: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group: str,
    weight_bias: float = 0.0,
) -> None:
    """Run `all_reduce_rms_norm_` or `reduce_scatter_rms_norm_`."""
    _norm(sums, input, residual, weight, eps, group, output, weight_bias)


def check_plain(
    sums: str,
    output: torch.Tensor,
    residual: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group: str,
    *_: object,
) -> None:
    """Check the arguments of `run_plain`."""
    NormTensors(input, residual, weight, output).check(Quant.NONE, _parts(sums, group))


def run_static(
    sums: str,
    quantized: torch.Tensor,
    residual: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    eps: float,
    group: str,
    weight_bias: float = 0.0,
    output: torch.Tensor | None = None,
) -> None:
    """Run `all_reduce_rms_norm_static_fp8_` or the same of `reduce_scatter`."""
    arguments = input, residual, weight, eps, group, scale, None
    _norm_fp8(sums, *arguments, output, quantized, None, weight_bias)


def check_static(
    sums: str,
    quantized: torch.Tensor,
    residual: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    eps: float,
    group: str,
    weight_bias: float = 0.0,
    output: torch.Tensor | None = None,
) -> None:
    """Check the arguments of `run_static`."""
    tensors = NormTensors(input, residual, weight, output, quantized, scale)
    tensors.check(Quant.STATIC, _parts(sums, group))


def run_dynamic(
    sums: str,
    quantized: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    group_size: int | None,
    eps: float,
    group: str,
    weight_bias: float = 0.0,
    output: torch.Tensor | None = None,
) -> None:
    """Run `all_reduce_rms_norm_dynamic_fp8_` or the same of `reduce_scatter`."""
    arguments = input, residual, weight, eps, group, None, group_size
    _norm_fp8(sums, *arguments, output, quantized, scales, weight_bias)


def check_dynamic(
    sums: str,
    quantized: torch.Tensor,
    scales: torch.Tensor,
    residual: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    group_size: int | None,
    eps: float,
    group: str,
    weight_bias: float = 0.0,
    output: torch.Tensor | None = None,
) -> None:
    """Check the arguments of `run_dynamic`."""
    quant = _quant(None, group_size, scales)
    tensors = NormTensors(input, residual, weight, output, quantized, scales)
    tensors.check(quant, _parts(sums, group))
