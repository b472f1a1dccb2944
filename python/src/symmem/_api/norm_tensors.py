"""The tensors of a fused norm, and how they must fit together."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, cast

from symmem import errors
from symmem._torch.pytorch import pytorch

if TYPE_CHECKING:
    import torch

GROUP = 128
"""The number of elements that share a scale if each row has several scales."""


class Quant(IntEnum):
    """The kinds of quantization. The values are those of symmem.h."""

    NONE = 0
    STATIC = 1
    PER_ROW = 2
    PER_GROUP = 3


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

    def check(self, quant: Quant, parts: int = 1) -> None:
        """Raise `InvalidError` unless dtypes and shapes match.

        The other tensors have the rows of one of the parts of `tensor`.
        """
        module = pytorch().module
        tensor, weight = self.tensor, self.weight
        if tensor.dtype not in (module.bfloat16, module.float16):
            raise errors.InvalidError(f"tensor has dtype {tensor.dtype}; want bfloat16 or float16")
        shape = tuple(tensor.shape)
        if parts > 1:
            if tensor.dim() < 2 or shape[0] % parts:
                raise errors.InvalidError(
                    f"tensor has shape {shape}, whose rows {parts} ranks cannot divide evenly; "
                    "pad it"
                )
            shape = (shape[0] // parts, *shape[1:])
        for name, each in self.named():
            dtype = module.float8_e4m3fn if name == "quantized" else tensor.dtype
            if each.dtype is not dtype:
                raise errors.InvalidError(f"{name} has dtype {each.dtype}; want {dtype}")
            if not each.is_contiguous():
                raise errors.InvalidError(f"{name} is not contiguous; pass {name}.contiguous()")
            if name not in ("tensor", "weight") and each.shape != shape:
                has = "tensor has" if parts == 1 else "this rank's part of tensor has"
                raise errors.InvalidError(
                    f"{name} has shape {tuple(each.shape)}, but {has} {shape}"
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
        lead, hidden = self.residual.shape[:-1], self.residual.shape[-1]
        if quant is Quant.PER_GROUP and hidden % GROUP:
            raise errors.InvalidError(
                f"rows of {hidden} elements cannot be divided into groups of {GROUP}; omit "
                "group_size"
            )
        want = (*lead, hidden // GROUP if quant is Quant.PER_GROUP else 1)
        if tuple(scales.shape) != want:
            raise errors.InvalidError(f"scales has shape {tuple(scales.shape)}; want {want}")


def strides(scales: torch.Tensor) -> tuple[int, int]:
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
