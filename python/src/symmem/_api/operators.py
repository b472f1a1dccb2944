"""Collectives as operators of PyTorch, so that torch.compile and graphs of it can hold them.

`torch.ops.symmem` has, for each collective, an operator that writes its arguments, whose name ends
in an underscore, and for some one that returns a new tensor, which is symmetric. Groups are given
by their names, which are the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from symmem import errors
from symmem._api import collectives, memory
from symmem._api.norms import all_reduce_rms_norm
from symmem._rank.session import find, session
from symmem._torch.pytorch import pytorch

if TYPE_CHECKING:
    import torch

    Shape = tuple[int, ...]


class Operator(NamedTuple):
    """How an operator is called, and what it does.

    Attributes:
        schema: the arguments and the result, as PyTorch writes them.
        run: takes these arguments; before them the output, if the operator returns a new tensor.
        shape: the shape of a new tensor, for an input and a number of ranks.
    """

    schema: str
    run: Callable[..., Any]
    shape: Callable[[torch.Tensor, int], Shape] | None = None


def _same(tensor: torch.Tensor, _: int) -> Shape:
    return tuple(tensor.shape)


def _gathered(tensor: torch.Tensor, size: int) -> Shape:
    return (tensor.shape[0] * size, *tensor.shape[1:]) if tensor.dim() else (size,)


def _scattered(tensor: torch.Tensor, size: int) -> Shape:
    if tensor.dim() == 0 or tensor.shape[0] % size:
        raise errors.InvalidError(f"{tuple(tensor.shape)} has no rows for each of {size} ranks")
    return (tensor.shape[0] // size, *tensor.shape[1:])


def _rms_norm(
    output: torch.Tensor,
    residual: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group: str,
) -> None:
    all_reduce_rms_norm(input, residual, weight, eps, group, output)


def _broadcast(tensor: torch.Tensor, group_src: int, group: str) -> None:
    collectives.broadcast(tensor, group=group, group_src=group_src)


def _all_to_all(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None,
    input_split_sizes: Sequence[int] | None,
    group: str,
    equal_splits: bool = False,
) -> None:
    splits = output_split_sizes, input_split_sizes
    collectives.all_to_all_single(output, input, *splits, group, equal_splits=equal_splits)


OPERATORS = {
    "all_reduce_": Operator("(Tensor(a!) tensor, str op, str group) -> ()", collectives.all_reduce),
    "all_reduce": Operator(
        "(Tensor tensor, str op, str group) -> Tensor", collectives.all_reduce_into, _same
    ),
    "all_reduce_rms_norm_": Operator(
        "(Tensor(a!) output, Tensor(b!) residual, Tensor input, Tensor weight, float eps, "
        "str group) -> ()",
        _rms_norm,
    ),
    "all_gather_into_tensor_": Operator(
        "(Tensor(a!) output, Tensor input, str group) -> ()", collectives.all_gather_into_tensor
    ),
    "all_gather_into_tensor": Operator(
        "(Tensor input, str group) -> Tensor", collectives.all_gather_into_tensor, _gathered
    ),
    "reduce_scatter_tensor_": Operator(
        "(Tensor(a!) output, Tensor input, str op, str group) -> ()",
        collectives.reduce_scatter_tensor,
    ),
    "reduce_scatter_tensor": Operator(
        "(Tensor input, str op, str group) -> Tensor",
        collectives.reduce_scatter_tensor,
        _scattered,
    ),
    "broadcast_": Operator("(Tensor(a!) tensor, int group_src, str group) -> ()", _broadcast),
    "all_to_all_single_": Operator(
        "(Tensor(a!) output, Tensor input, int[]? output_split_sizes, int[]? input_split_sizes, "
        "str group, bool equal_splits=False) -> ()",
        _all_to_all,
    ),
}


@cache
def register() -> Any:
    """Define the operators, once; they exist as long as what this returns."""
    module = pytorch().module
    made = module.library.Library("symmem", "DEF")

    def define(name: str, schema: str, run: Any, fake: Any) -> None:
        made.define(name + schema)
        made.impl(name, run, "CompositeExplicitAutograd")
        module.library.register_fake(f"symmem::{name}", fake, lib=made)

    define("no_gradient", _GRADIENT_SCHEMA, _no_gradient, _no_gradient_fake)
    made.impl("no_gradient", module.library.fallthrough_kernel, "Autograd")
    for name, operator in OPERATORS.items():
        if operator.shape is None:
            define(name, operator.schema, _in_place(operator.run), _nothing)
            # Autograd does not see what operators in place do, as in torch.distributed.
            made.impl(name, module.library.fallthrough_kernel, "Autograd")
        else:
            define(name, operator.schema, *_functional(operator.run, operator.shape))
            _refuse_gradients(module, made, name, operator.schema)
    return made


def _in_place(run: Callable[..., Any]) -> Callable[..., None]:
    """Make the kernel of an operator that returns nothing."""

    def kernel(*arguments: Any) -> None:
        run(*arguments)

    return kernel


def _functional(
    run: Callable[..., Any], shape: Callable[[torch.Tensor, int], Shape]
) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]:
    """Make the kernel of an operator that returns a new tensor, and its fake.

    The input is the first argument and the name of the group the last.
    """

    def kernel(input: torch.Tensor, *others: Any) -> torch.Tensor:
        group = find(others[-1])
        output = memory.empty(group.runtime, shape(input, group.size), input.dtype, group)
        run(output, input.contiguous(), *others)
        return output

    def fake(input: torch.Tensor, *others: Any) -> torch.Tensor:
        # The group need not be open while the compiler asks for shapes.
        return input.new_empty(shape(input, session.count(others[-1])))

    return kernel, fake


def _nothing(*_: Any) -> None:
    """Be the fake of an operator that returns nothing."""


def _refuse_gradients(module: Any, made: Any, name: str, schema: str) -> None:
    """Make a functional operator raise where its gradient is asked for, compiled or not.

    Inference with weights that require gradients never asks for one.
    """

    def keep_shape(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.shape = inputs[0].shape

    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        refused = module.ops.symmem.no_gradient(gradient, ctx.shape, name)
        return (refused, *[None] * schema.count(","))

    module.library.register_autograd(
        f"symmem::{name}", backward, setup_context=keep_shape, lib=made
    )


_GRADIENT_SCHEMA = "(Tensor gradient, SymInt[] shape, str operator) -> Tensor"


def _no_gradient(gradient: torch.Tensor, shape: Sequence[int], operator: str) -> torch.Tensor:
    raise errors.UnsupportedError(
        f"torch.ops.symmem.{operator} has no gradient: use torch.distributed.nn.functional where "
        "gradients go through a collective, or pass tensor.detach() where none do"
    )


def _no_gradient_fake(gradient: torch.Tensor, shape: Sequence[int], _: str) -> torch.Tensor:
    return gradient.new_empty(shape)
