"""All-reduce fused with a residual addition, RMSNorm and quantization."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, cast

from symmem import errors
from symmem._api import compiled
from symmem._api.call import Call, checked
from symmem._c.arguments import NormArguments
from symmem._rank.session import find
from symmem._torch.autograd import refuse
from symmem._torch.pytorch import compiling, modules, pytorch

if TYPE_CHECKING:
    import torch

    from symmem._api.terms import GroupLike

GROUP = 128
"""The number of elements that share a scale if each row has several scales."""


class Quant(IntEnum):
    """The kinds of quantization. The values are those of symmem.h."""

    NONE = 0
    STATIC = 1
    PER_ROW = 2
    PER_GROUP = 3


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
    if compiling():
        output = modules["torch"].empty_like(tensor) if out is None else out
        name = compiled.group_name(group)
        compiled.operators().all_reduce_rms_norm_(
            output, residual, tensor, weight, eps, name, weight_bias
        )
        compiled.finished(False, "symmem.all_reduce_rms_norm", [output, residual], [tensor, weight])
        return output
    output = pytorch().module.empty_like(tensor) if out is None else out
    tensors = NormTensors(tensor, residual, weight, output)
    _run("symmem.all_reduce_rms_norm", tensors, Quant.NONE, eps, weight_bias, group)
    return output


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
    torch = modules["torch"] if compiling() else pytorch().module
    quant = _quant(scale, group_size, scales)
    if quantized is None:
        quantized = torch.empty_like(tensor, dtype=torch.float8_e4m3fn)
    if scale is not None:
        scales = scale
    elif scales is None:
        groups = tensor.shape[-1] // GROUP if group_size else 1
        scales = torch.empty(*tensor.shape[:-1], groups, dtype=torch.float32, device=tensor.device)
    if not compiling():
        tensors = NormTensors(tensor, residual, weight, out, quantized, scales)
        _run("symmem.all_reduce_rms_norm_fp8", tensors, quant, eps, weight_bias, group)
        return quantized, scales
    name, operators = compiled.group_name(group), compiled.operators()
    writes, reads = [quantized, residual, tensor if out is None else out], [tensor, weight]
    if scale is not None:
        operators.all_reduce_rms_norm_static_fp8_(
            quantized, residual, tensor, weight, scale, eps, name, weight_bias, out
        )
    else:
        operators.all_reduce_rms_norm_dynamic_fp8_(
            quantized, scales, residual, tensor, weight, group_size, eps, name, weight_bias, out
        )
        writes.append(scales)
    compiled.finished(False, "symmem.all_reduce_rms_norm_fp8", writes, reads)
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


class NormTensors(NamedTuple):
    """The tensors of a norm, named after the arguments."""

    tensor: torch.Tensor
    residual: torch.Tensor
    weight: torch.Tensor
    out: torch.Tensor | None
    quantized: torch.Tensor | None = None
    scales: torch.Tensor | None = None

    def named(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors that were passed, except for the scales."""
        for name, tensor in zip(self._fields[:-1], self[:-1], strict=True):
            if tensor is not None or name not in ("out", "quantized"):
                yield name, cast("torch.Tensor", tensor)

    def check(self, quant: Quant) -> None:
        """Raise `InvalidError` unless dtypes and shapes match."""
        module = pytorch().module
        tensor, weight = self.tensor, self.weight
        if tensor.dtype not in (module.bfloat16, module.float16):
            raise errors.InvalidError(f"tensor has dtype {tensor.dtype}; want bfloat16 or float16")
        for name, each in self.named():
            dtype = module.float8_e4m3fn if name == "quantized" else tensor.dtype
            if each.dtype is not dtype:
                raise errors.InvalidError(f"{name} has dtype {each.dtype}; want {dtype}")
            if not each.is_contiguous():
                raise errors.InvalidError(f"{name} is not contiguous; pass {name}.contiguous()")
            if name != "weight" and each.shape != tensor.shape:
                raise errors.InvalidError(
                    f"{name} has shape {tuple(each.shape)}, but tensor has {tuple(tensor.shape)}"
                )
        if tensor.dim() == 0 or weight.dim() != 1 or tensor.shape[-1] != weight.shape[0]:
            raise errors.InvalidError(
                f"weight has shape {tuple(weight.shape)}, which does not match the last dimension "
                f"of {tuple(tensor.shape)}"
            )
        if self.scales is not None:
            self._check_scales(self.scales, quant)

    def _check_scales(self, scales: torch.Tensor, quant: Quant) -> None:
        name = "scale" if quant is Quant.STATIC else "scales"
        if scales.dtype is not pytorch().module.float32:
            raise errors.InvalidError(f"{name} has dtype {scales.dtype}; want torch.float32")
        if quant is Quant.STATIC:
            if scales.numel() != 1:
                raise errors.InvalidError(f"scale has {scales.numel()} elements; want one")
            return
        lead, hidden = self.tensor.shape[:-1], self.tensor.shape[-1]
        if quant is Quant.PER_GROUP and hidden % GROUP:
            raise errors.InvalidError(
                f"rows of {hidden} elements cannot be divided into groups of {GROUP}; omit "
                "group_size"
            )
        want = (*lead, hidden // GROUP if quant is Quant.PER_GROUP else 1)
        if tuple(scales.shape) != want:
            raise errors.InvalidError(f"scales has shape {tuple(scales.shape)}; want {want}")


def _strides(scales: torch.Tensor) -> tuple[int, int]:
    """Return the strides of the scales: between rows, and between the groups of a row."""
    row, block = 0, 0  # block is the extent of the row dimensions visited so far
    lead = zip(reversed(scales.shape[:-1]), reversed(scales.stride()[:-1]), strict=True)
    for size, stride in lead:
        if size == 1:
            continue
        if stride == 0:
            raise errors.InvalidError("scales is an expanded tensor, whose elements share memory")
        if block and stride != block:
            raise errors.InvalidError(
                f"scales has shape {tuple(scales.shape)} and strides {scales.stride()}; want the "
                "same distance between all rows, as in a matrix"
            )
        row, block = row or stride, stride * size
    return row, scales.stride(-1) if scales.shape[-1] > 1 else 0


def _run(
    name: str,
    tensors: NormTensors,
    quant: Quant,
    eps: float,
    weight_bias: float,
    group: GroupLike,
) -> None:
    """Check the tensors and make the call."""
    call = Call(find(group), False)
    for each, tensor in tensors.named():
        if not checked(call.group, each, tensor):
            raise errors.InvalidError(f"{each} is not contiguous; pass {each}.contiguous()")
        call.use(each, tensor)
    if tensors.scales is not None:
        call.use("scale" if quant is Quant.STATIC else "scales", tensors.scales)
    tensors.check(quant)
    rows = tensors.tensor.numel() // max(tensors.weight.numel(), 1)
    n = NormArguments(
        size=c.sizeof(NormArguments),
        rows=rows,
        hidden=tensors.weight.numel(),
        type=pytorch().element(tensors.tensor.dtype),
        quant=quant,
        epsilon=eps,
        weight_bias=weight_bias,
    )
    for each, tensor in tensors.named():
        field = {"tensor": "input", "out": "output"}.get(each, each)
        setattr(n, field, tensor.data_ptr())
    if tensors.scales is not None:
        n.scales = tensors.scales.data_ptr()
        if quant is not Quant.STATIC:
            n.scale_strides[:] = _strides(tensors.scales)
    call.run("symmem_norm", c.byref(n))
    if any(t.requires_grad for _, t in tensors.named()):
        written = [t for each, t in tensors.named() if each not in ("tensor", "weight")]
        if tensors.out is None:
            written.append(tensors.tensor)
        refuse(name, written)


# The operators of torch.ops.symmem, and their checks while a compiler traces them.


def run_plain(
    output: torch.Tensor,
    residual: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group: str,
    weight_bias: float = 0.0,
) -> None:
    """Run `all_reduce_rms_norm_`."""
    all_reduce_rms_norm(input, residual, weight, eps, group, output, weight_bias)


def check_plain(
    output: torch.Tensor,
    residual: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    *_: object,
) -> None:
    """Check the arguments of `all_reduce_rms_norm_`."""
    NormTensors(input, residual, weight, output).check(Quant.NONE)


def run_static(
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
    """Run `all_reduce_rms_norm_static_fp8_`."""
    all_reduce_rms_norm_fp8(
        *(input, residual, weight, eps, group),
        scale=scale,
        out=output,
        quantized=quantized,
        weight_bias=weight_bias,
    )


def check_static(
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
    """Check the arguments of `all_reduce_rms_norm_static_fp8_`."""
    NormTensors(input, residual, weight, output, quantized, scale).check(Quant.STATIC)


def run_dynamic(
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
    """Run `all_reduce_rms_norm_dynamic_fp8_`."""
    all_reduce_rms_norm_fp8(
        *(input, residual, weight, eps, group),
        group_size=group_size,
        out=output,
        quantized=quantized,
        scales=scales,
        weight_bias=weight_bias,
    )


def check_dynamic(
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
    """Check the arguments of `all_reduce_rms_norm_dynamic_fp8_`."""
    quant = _quant(None, group_size, scales)
    NormTensors(input, residual, weight, output, quantized, scales).check(quant)
