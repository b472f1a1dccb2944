"""Collectives as operators of PyTorch, so that torch.compile and graphs of it can hold them.

`torch.ops.symmem` has, for each collective, one operator that writes its arguments, whose name ends
in an underscore, and one that returns a new tensor. The new ones are symmetric. Groups are given by
their names, which are the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._api import collectives, memory
from symmem._rank.session import find, session
from symmem._rank.work import FinishedWork, Work
from symmem._torch.pytorch import modules, pytorch

if TYPE_CHECKING:
    import torch

_SCHEMAS = {
    "all_reduce_": "(Tensor(a!) tensor, str op, str group) -> ()",
    "all_reduce": "(Tensor tensor, str op, str group) -> Tensor",
    "all_reduce_rms_norm_": (
        "(Tensor(a!) output, Tensor(b!) residual, Tensor input, Tensor weight, float eps, "
        "str group) -> ()"
    ),
    "all_gather_into_tensor_": "(Tensor(a!) output, Tensor input, str group) -> ()",
    "all_gather_into_tensor": "(Tensor input, str group) -> Tensor",
    "reduce_scatter_tensor_": "(Tensor(a!) output, Tensor input, str op, str group) -> ()",
    "reduce_scatter_tensor": "(Tensor input, str op, str group) -> Tensor",
    "broadcast_": "(Tensor(a!) tensor, int group_src, str group) -> ()",
    "all_to_all_single_": (
        "(Tensor(a!) output, Tensor input, int[]? output_split_sizes, "
        "int[]? input_split_sizes, str group, bool equal_splits=False) -> ()"
    ),
}


_NO_GRADIENT = "no_gradient"

_GRADIENT_SCHEMA = "(Tensor gradient, SymInt[] shape, str operator) -> Tensor"


def _size_of(name: str) -> int:
    """Count the ranks of a group, which need not be open: shapes are asked for while compiling."""
    return session.groups.count(name)


def _like(tensor: torch.Tensor, rows: int, group: str) -> torch.Tensor:
    """Make a symmetric tensor that differs from another in its first length alone."""
    shape = (rows, *tensor.shape[1:]) if tensor.dim() else ()
    found = find(group)
    return memory.empty(found.runtime, shape, tensor.dtype, found)


def _rows(tensor: torch.Tensor) -> int:
    return int(tensor.shape[0]) if tensor.dim() else 1


class Eager:
    """What the operators do."""

    @staticmethod
    def all_reduce_(tensor: torch.Tensor, op: str, group: str) -> None:
        """Combine in place."""
        collectives.all_reduce(tensor, op, group)

    @staticmethod
    def all_reduce(tensor: torch.Tensor, op: str, group: str) -> torch.Tensor:
        """Combine into a new tensor."""
        output = _like(tensor, _rows(tensor), group)
        collectives.all_reduce_out(output, tensor.contiguous(), op, group)
        return output

    @staticmethod
    def all_reduce_rms_norm_(
        output: torch.Tensor,
        residual: torch.Tensor,
        input: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        group: str,
    ) -> None:
        """Combine, add and normalize."""
        collectives.all_reduce_rms_norm(input, residual, weight, eps, group, output)

    @staticmethod
    def all_gather_into_tensor_(output: torch.Tensor, input: torch.Tensor, group: str) -> None:
        """Gather into a given tensor."""
        collectives.all_gather_into_tensor(output, input, group)

    @staticmethod
    def all_gather_into_tensor(input: torch.Tensor, group: str) -> torch.Tensor:
        """Gather along the first dimension into a new tensor."""
        output = _like(input, _rows(input) * find(group).size, group)
        collectives.all_gather_into_tensor(output, input.contiguous(), group)
        return output

    @staticmethod
    def reduce_scatter_tensor_(
        output: torch.Tensor, input: torch.Tensor, op: str, group: str
    ) -> None:
        """Combine and scatter into a given tensor."""
        collectives.reduce_scatter_tensor(output, input, op, group)

    @staticmethod
    def reduce_scatter_tensor(input: torch.Tensor, op: str, group: str) -> torch.Tensor:
        """Combine and scatter along the first dimension into a new tensor."""
        output = _like(input, _divided(input, find(group).size), group)
        collectives.reduce_scatter_tensor(output, input.contiguous(), op, group)
        return output

    @staticmethod
    def no_gradient(gradient: torch.Tensor, shape: Sequence[int], operator: str) -> torch.Tensor:
        """Refuse to differentiate an operator."""
        raise errors.UnsupportedError(
            f"torch.ops.symmem.{operator} has no gradient: take torch.distributed.nn.functional "
            "where gradients go through a collective, or pass tensor.detach() where none do"
        )

    @staticmethod
    def broadcast_(tensor: torch.Tensor, group_src: int, group: str) -> None:
        """Copy the root's tensor."""
        collectives.broadcast(tensor, None, group, False, group_src)

    @staticmethod
    def all_to_all_single_(
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] | None,
        input_split_sizes: Sequence[int] | None,
        group: str,
        equal_splits: bool = False,
    ) -> None:
        """Exchange parts."""
        collectives.all_to_all_single(
            output, input, output_split_sizes, input_split_sizes, group, False, equal_splits
        )


class Fake:
    """The shapes of what operators return, without doing anything."""

    @staticmethod
    def all_reduce(tensor: torch.Tensor, op: str, group: str) -> torch.Tensor:
        """Have the input's shape."""
        return tensor.new_empty(tensor.shape)

    @staticmethod
    def all_gather_into_tensor(input: torch.Tensor, group: str) -> torch.Tensor:
        """Have as many times the rows as there are ranks."""
        return input.new_empty((_rows(input) * _size_of(group), *input.shape[1:]))

    @staticmethod
    def reduce_scatter_tensor(input: torch.Tensor, op: str, group: str) -> torch.Tensor:
        """Have a part of the rows."""
        return input.new_empty((_divided(input, _size_of(group)), *input.shape[1:]))

    @staticmethod
    def no_gradient(gradient: torch.Tensor, shape: Sequence[int], operator: str) -> torch.Tensor:
        """Have the shape of what would be differentiated."""
        return gradient.new_empty(shape)


def _divided(tensor: torch.Tensor, size: int) -> int:
    if tensor.dim() == 0 or tensor.shape[0] % size:
        raise errors.InvalidError(f"{tuple(tensor.shape)} has no rows for each of {size} ranks")
    return int(tensor.shape[0]) // size


@cache
def register() -> Any:
    """Define the operators, once; they exist as long as what this returns."""
    module = pytorch().module
    made = module.library.Library("symmem", "DEF")
    for name, schema in {**_SCHEMAS, _NO_GRADIENT: _GRADIENT_SCHEMA}.items():
        made.define(name + schema)
        made.impl(name, getattr(Eager, name), "CompositeExplicitAutograd")
        fake = getattr(Fake, name, _nothing)
        module.library.register_fake(f"symmem::{name}", fake, lib=made)
        _refuse_gradients(module, made, name)
    return made


def _refuse_gradients(module: Any, made: Any, name: str) -> None:
    """Make a functional operator raise where its gradient is asked for, compiled or not.

    Inference with weights that require gradients never asks for one. Autograd does not see what
    operators in place do, as it does not see what torch.distributed does in place.
    """
    if name.endswith("_") or name == _NO_GRADIENT:
        made.impl(name, module.library.fallthrough_kernel, "Autograd")
        return

    def keep_shape(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.shape = inputs[0].shape

    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        refused = module.ops.symmem.no_gradient(gradient, ctx.shape, name)
        return (refused, *[None] * (_SCHEMAS[name].count(",")))

    module.library.register_autograd(
        f"symmem::{name}", backward, setup_context=keep_shape, lib=made
    )


def _nothing(*arguments: Any) -> None:
    """Be the fake of an operator that returns nothing."""


# ---- What the functions of the package do while PyTorch compiles -----------------------------


def _op_name(op: Any) -> str:
    """Name a reduction in a way that the compiler can follow: it hashes no ReduceOp."""
    if op is None:
        return "sum"
    return op if isinstance(op, str) else str(op.name).lower()


def _operators() -> Any:
    """Find the operators, in a way that the compiler can follow."""
    return modules["torch"].ops.symmem


def _name_of(group: Any) -> str:
    """Name a group for an operator, in a way that the compiler can follow.

    A process group is named as PyTorch names it, and found when the operator runs.
    """
    if isinstance(group, str):
        return group
    if _is_process_group(group):
        return str(group.group_name)
    return find(group).name


def _is_process_group(group: Any) -> bool:
    return isinstance(group, modules["torch"].distributed.ProcessGroup)


def _finished(async_op: bool, output: torch.Tensor) -> Work | None:
    """Compiled code waits for every collective."""
    return FinishedWork([output]) if async_op else None


def all_reduce_(tensor: torch.Tensor, op: Any, group: Any, async_op: bool) -> Work | None:
    """Have the compiler call the operator."""
    _operators().all_reduce_(tensor, _op_name(op), _name_of(group))
    return _finished(async_op, tensor)


def all_reduce_rms_norm_(
    output: torch.Tensor,
    residual: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group: Any,
) -> None:
    """Have the compiler call the operator."""
    _operators().all_reduce_rms_norm_(output, residual, input, weight, eps, _name_of(group))


def all_gather_into_tensor_(
    output: torch.Tensor, input: torch.Tensor, group: Any, async_op: bool
) -> Work | None:
    """Have the compiler call the operator."""
    _operators().all_gather_into_tensor_(output, input, _name_of(group))
    return _finished(async_op, output)


def reduce_scatter_tensor_(
    output: torch.Tensor, input: torch.Tensor, op: Any, group: Any, async_op: bool
) -> Work | None:
    """Have the compiler call the operator."""
    _operators().reduce_scatter_tensor_(output, input, _op_name(op), _name_of(group))
    return _finished(async_op, output)


def broadcast_(
    tensor: torch.Tensor, src: int | None, group: Any, group_src: int | None, async_op: bool
) -> Work | None:
    """Have the compiler call the operator."""
    if _is_process_group(group) and src is not None and group_src is None:
        # PyTorch's numbers count in this group.
        ranks = modules["torch"].distributed.get_process_group_ranks(group)
        if src not in ranks:
            raise errors.InvalidError(f"rank {src} is not in the process group of {ranks}")
        root = ranks.index(src)
    elif _is_process_group(group) and src is None and group_src is not None:
        root = group_src
    else:
        root = find(group).root(src, group_src)
    _operators().broadcast_(tensor, root, _name_of(group))
    return _finished(async_op, tensor)


def all_to_all_single_(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None,
    input_split_sizes: Sequence[int] | None,
    group: Any,
    async_op: bool,
    equal_splits: bool,
) -> Work | None:
    """Have the compiler call the operator."""
    _operators().all_to_all_single_(
        output, input, output_split_sizes, input_split_sizes, _name_of(group), equal_splits
    )
    return _finished(async_op, output)
