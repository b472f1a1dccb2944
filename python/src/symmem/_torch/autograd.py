"""Tensors that autograd follows, and what it learns of writes that it does not see."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from symmem._torch.pytorch import compiling, is_view, pytorch

if TYPE_CHECKING:
    import torch

FORMULA = "no_gradient"
"""The operator of `torch.ops.symmem` that raises in a backward pass."""


def refuse(name: str, writes: Iterable[torch.Tensor]) -> None:
    """Make a backward pass raise `UnsupportedError` where it reaches one of the written tensors.

    It does nothing to leaves, such as parameters, whose values nothing has computed.

    Args:
        name: what has written the tensors.
        writes: the tensors.
    """
    if not pytorch().module.is_grad_enabled():
        return
    for tensor in writes:
        parameter = tensor.is_leaf and tensor.requires_grad
        if not parameter and (tensor.is_floating_point() or tensor.is_complex()):
            _cut(tensor)
            _refusal().apply(tensor, _anchor(), name)


def write_followed(output: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Copy the result into a tensor, and return one that autograd follows.

    It is the output, unless autograd cannot follow that: a chunk of another tensor, or a leaf.
    """
    if compiling():
        return output.copy_(result)
    _cut(output)
    try:
        return output.copy_(result)
    except RuntimeError:
        output.detach().copy_(result.detach())
        return result


def _cut(tensor: torch.Tensor) -> None:
    """Forget what computed a tensor whose values are overwritten.

    Otherwise a buffer that is used again would keep the graphs of all earlier steps. PyTorch does
    not allow it for views.
    """
    if tensor.grad_fn is not None and not is_view(tensor):
        tensor.detach_()


@cache
def _anchor() -> torch.Tensor:
    """Make the tensor by whose gradient autograd reaches a refusal."""
    made: torch.Tensor = pytorch().module.zeros((), requires_grad=True)
    return made


@cache
def _refusal() -> Any:
    """Make the function of autograd that refuses; torch is imported only when it is used."""
    module = pytorch().module

    class Refusal(module.autograd.Function):  # type: ignore[misc, name-defined]
        """Stands for a write in place."""

        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor, anchor: torch.Tensor, name: str) -> Any:
            ctx.name, ctx.shape = name, tensor.shape
            ctx.mark_dirty(tensor)
            return tensor

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            getattr(module.ops.symmem, FORMULA)(gradient, ctx.shape, ctx.name)

    return Refusal
