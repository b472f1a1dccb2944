"""Tells autograd about writes to tensors that it does not see."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from symmem._torch.pytorch import compiling, is_view, pytorch

if TYPE_CHECKING:
    import torch

FORMULA = "no_gradient"
"""The operator of `torch.ops.symmem` that raises an error in a backward pass."""


def refuse(name: str, writes: Iterable[torch.Tensor]) -> None:
    """Make a backward pass raise `UnsupportedError` when it reaches one of the written tensors.

    Leaves, such as parameters, are left unchanged, because a backward pass ends at them.

    Args:
        name: the name of the function that wrote the tensors.
        writes: the written tensors.
    """
    if not pytorch().module.is_grad_enabled():
        return
    for tensor in writes:
        parameter = tensor.is_leaf and tensor.requires_grad
        if not parameter and (tensor.is_floating_point() or tensor.is_complex()):
            _cut(tensor)
            _refusal().apply(tensor, _anchor(), name)


def write_tracked(output: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Copy the result into the output, and return the one of them that autograd tracks.

    This is the output unless autograd cannot track it, for example because it is a leaf or a chunk
    of another tensor.
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
    """Discard the autograd history of a tensor whose values are overwritten.

    Otherwise, a reused buffer would keep the graphs of all earlier steps alive. PyTorch does not
    allow this for views.
    """
    if tensor.grad_fn is not None and not is_view(tensor):
        tensor.detach_()


@cache
def _anchor() -> torch.Tensor:
    """Return a tensor that requires a gradient, so that autograd records the refusal."""
    anchor: torch.Tensor = pytorch().module.zeros((), requires_grad=True)
    return anchor


@cache
def _refusal() -> Any:
    """Return the autograd function that refuses, defined here so that torch is imported lazily."""
    module = pytorch().module

    class Refusal(module.autograd.Function):  # type: ignore[misc, name-defined]
        """Represents a write in place, and raises an error in the backward pass."""

        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor, anchor: torch.Tensor, name: str) -> Any:
            ctx.name, ctx.shape = name, tensor.shape
            ctx.mark_dirty(tensor)
            return tensor

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            getattr(module.ops.symmem, FORMULA)(gradient, ctx.shape, ctx.name)

    return Refusal
