"""Gradients of the operators of `torch.ops.symmem` that return new tensors.

As in `torch.distributed.nn.functional`, the loss is the sum of the losses of all ranks. The
gradient of a collective is therefore another collective, and all ranks must run the backward pass.
The formulas consist of operators that have gradients themselves. Gradients are ordinary tensors
unless the backward pass runs inside a scope, because ranks free them at different times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._api import routes
from symmem._rank.session import session
from symmem._torch.pytorch import modules

if TYPE_CHECKING:
    import torch

    Shape = Sequence[int]

SCHEMA = "(Tensor gradient, SymInt[] shape, str operator) -> Tensor"
"""The schema of `no_gradient`, an operator that raises when a backward pass runs it."""


def no_gradient(gradient: torch.Tensor, shape: Shape, operator: str) -> torch.Tensor:
    """Raise `UnsupportedError`, because the operator has no gradient."""
    raise errors.UnsupportedError(
        f"{operator} has no gradient. If gradients must pass through the collective, use "
        "symmem.functional with a sum or an average; otherwise pass tensor.detach(), or make the "
        "call under torch.no_grad()"
    )


def no_gradient_fake(gradient: torch.Tensor, shape: Shape, _: str) -> torch.Tensor:
    """Return a tensor of the shape that `no_gradient` would return."""
    return gradient.new_empty(shape)


REFUSED = "(Tensor written, Tensor source, str operator) -> Tensor"
"""The schema of `refused`, which copies a tensor that a collective has written from a source."""


def refused(written: torch.Tensor, source: torch.Tensor, operator: str) -> torch.Tensor:
    """Copy a tensor. The gradient of the copy with respect to the source is `no_gradient`."""
    return written.clone()


def keep_refused(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    """Save the inputs that `refused_gradient` needs."""
    ctx.shape, ctx.operator = inputs[1].shape, inputs[2]


def refused_gradient(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    """Raise an error in the backward pass."""
    return None, _ops().no_gradient(gradient, ctx.shape, ctx.operator), None


def all_reduce(gradient: torch.Tensor, shape: Shape, op: str, group: str) -> Any:
    """Reduce the gradients as the tensors were reduced."""
    if _factor(op, group) is None:
        return _refused(gradient, shape, "all_reduce", op)
    return _ops().all_reduce(gradient, op, group, False)


def all_gather_into_tensor(gradient: torch.Tensor, shape: Shape, group: str) -> Any:
    """Sum the gradients of this rank's part over all ranks."""
    return _ops().reduce_scatter_tensor(gradient, "sum", group, False).reshape(shape)


def reduce_scatter_tensor(gradient: torch.Tensor, shape: Shape, op: str, group: str) -> Any:
    """Gather the gradients of the parts."""
    factor = _factor(op, group)
    if factor is None:
        return _refused(gradient, shape, "reduce_scatter_tensor", op)
    return _scaled(_ops().all_gather_into_tensor(gradient, group, False), factor)


def broadcast(gradient: torch.Tensor, shape: Shape, root: int, group: str) -> Any:
    """Sum the gradients of all ranks on the root; the other ranks' gradients are 0."""
    return _ops().reduce(gradient, "sum", root, group, False)


def reduce(gradient: torch.Tensor, shape: Shape, op: str, root: int, group: str) -> Any:
    """Copy the gradient of the root to all ranks."""
    factor = _factor(op, group)
    if factor is None:
        return _refused(gradient, shape, "reduce", op)
    return _scaled(_ops().broadcast(gradient, root, group, False), factor)


def gather(gradient: torch.Tensor, shape: Shape, root: int, group: str) -> Any:
    """Send each part of the root's gradient to the rank that contributed the part."""
    return _ops().scatter(gradient, root, group, False)


def scatter(gradient: torch.Tensor, shape: Shape, root: int, group: str) -> Any:
    """Gather the gradients of the parts on the root; the other ranks' gradients are 0."""
    return _ops().gather(gradient, root, group, False)


def all_to_all_single(
    gradient: torch.Tensor,
    shape: Shape,
    output_split_sizes: Sequence[int] | None,
    input_split_sizes: Sequence[int] | None,
    group: str,
) -> Any:
    """Send each part of the gradient back."""
    if input_split_sizes is None and output_split_sizes is not None:
        size = session.place(group).size
        input_split_sizes = [shape[0] // size] * size
    return _ops().all_to_all_single(gradient, input_split_sizes, output_split_sizes, group, False)


def all_gather_v(gradient: torch.Tensor, shape: Shape, sizes: Sequence[int], group: str) -> Any:
    """Sum the gradients of this rank's part over all ranks."""
    return _ops().reduce_scatter_v(gradient, sizes, "sum", group, False)


def reduce_scatter_v(
    gradient: torch.Tensor, shape: Shape, sizes: Sequence[int], op: str, group: str
) -> Any:
    """Gather the gradients of the parts."""
    factor = _factor(op, group)
    if factor is None:
        return _refused(gradient, shape, "reduce_scatter_v", op)
    return _scaled(_ops().all_gather_v(gradient, sizes, group, False), factor)


def combine(
    gradient: torch.Tensor, shape: Shape, ids: torch.Tensor, experts: int, group: str
) -> Any:
    """Send the gradient of each sum to the ranks that computed its rows."""
    return routes.spread(gradient.contiguous(), ids, experts, shape[1], group)


def unpermute(gradient: torch.Tensor, shape: Shape, *_: object) -> Any:
    """Raise an error when the backward pass runs."""
    return _ops().no_gradient(gradient, shape, "torch.ops.symmem.unpermute")


def _ops() -> Any:
    return modules["torch"].ops.symmem


def _factor(op: str, group: str) -> float | None:
    """Return the derivative of a reduction by each term, or None if it is not constant."""
    name, _, factor = op.partition(":")
    if name == "avg":
        return 1 / session.place(group).size
    return {"sum": 1.0, "premul_sum": float(factor or 1)}.get(name)


def _scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    return tensor if factor == 1 else tensor * factor


def _refused(gradient: torch.Tensor, shape: Shape, name: str, op: str) -> Any:
    """Raise an error when the backward pass runs, not when it is compiled."""
    operator = f"torch.ops.symmem.{name} with the reduction {op}"
    return _ops().no_gradient(gradient, shape, operator)
