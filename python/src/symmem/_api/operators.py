"""Collectives as operators of PyTorch, so that torch.compile and graphs of it can hold them.

`torch.ops.symmem` has two operators for a collective. The one whose name ends in an underscore
writes its arguments. The other returns a new tensor, which is symmetric, and has a gradient. Groups
are given by their names, which are the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from symmem import errors
from symmem._api import (
    collectives,
    compiled,
    formulas,
    lists,
    messages,
    norms,
    permutes,
    rooted,
    routes,
)
from symmem._rank import memory
from symmem._rank.groups import Place
from symmem._rank.session import find, session
from symmem._torch.pytorch import between_graphs, pytorch

if TYPE_CHECKING:
    import torch

    Shape = tuple[int, ...]


class Operator(NamedTuple):
    """Describes an operator.

    Attributes:
        schema: the arguments and the result, as PyTorch writes them.
        run: takes these arguments, preceded by the output if the operator returns a new tensor.
        shape: takes this rank's place in the group and the arguments, and returns the shape of the
            new tensor.
        formula: takes the gradient of the output, the first argument's shape and the other
            arguments, and returns the gradient of the first argument. None if autograd ignores the
            operator.
        check: raises while a compiler traces the operator, if its arguments do not fit together.
        dtype: the name of the dtype of a new tensor, if it is not that of the first argument.
    """

    schema: str
    run: Callable[..., Any]
    shape: Callable[..., Shape] | None = None
    formula: Callable[..., Any] | None = None
    check: Callable[..., None] | None = None
    dtype: str | None = None


def _same(_: Place, tensor: torch.Tensor, *others: Any) -> Shape:
    return tuple(tensor.shape)


def _gathered(place: Place, tensor: torch.Tensor, *others: Any) -> Shape:
    if tensor.dim() == 0:
        return (place.size,)
    return (tensor.shape[0] * place.size, *tensor.shape[1:])


def _scattered(place: Place, tensor: torch.Tensor, *others: Any) -> Shape:
    if tensor.dim() == 0 or tensor.shape[0] % place.size:
        raise errors.InvalidError(
            f"{tuple(tensor.shape)} has no rows for each of {place.size} ranks"
        )
    return (tensor.shape[0] // place.size, *tensor.shape[1:])


def _stacked(place: Place, tensor: torch.Tensor, *others: Any) -> Shape:
    return (place.size, *tensor.shape)


def _row(place: Place, tensor: torch.Tensor, *others: Any) -> Shape:
    if tensor.dim() == 0 or tensor.shape[0] != place.size:
        raise errors.InvalidError(f"{tuple(tensor.shape)} is not one row for each of {place}")
    return tuple(tensor.shape[1:])


def _exchanged(
    place: Place, tensor: torch.Tensor, output_split_sizes: Sequence[int] | None, *others: Any
) -> Shape:
    if output_split_sizes is None:
        return tuple(tensor.shape)
    return (sum(output_split_sizes), *tensor.shape[1:])


def _all_parts(place: Place, tensor: torch.Tensor, sizes: Sequence[int], *others: Any) -> Shape:
    return (sum(sizes), *tensor.shape[1:])


def _own_part(place: Place, tensor: torch.Tensor, sizes: Sequence[int], *others: Any) -> Shape:
    return (sizes[place.rank], *tensor.shape[1:])


def _broadcast(tensor: torch.Tensor, group_src: int, group: str) -> None:
    collectives.broadcast(tensor, group=group, group_src=group_src)


def _reduce(tensor: torch.Tensor, op: Any, group_dst: int, group: str) -> None:
    rooted.reduce(tensor, op=op, group=group, group_dst=group_dst)


def _scatter(
    tensor: torch.Tensor, scatter_list: list[torch.Tensor], group_src: int, group: str
) -> None:
    rooted.scatter(tensor, scatter_list, group=group, group_src=group_src)


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


def _norms(sums: str) -> dict[str, Operator]:
    """Describe the norms of the sums that a collective computes."""
    return {
        f"{sums}_rms_norm_": Operator(
            "(Tensor(a!) output, Tensor(b!) residual, Tensor input, Tensor weight, float eps, "
            "str group, float weight_bias=0.0) -> ()",
            partial(norms.run_plain, sums),
            check=partial(norms.check_plain, sums),
        ),
        f"{sums}_rms_norm_static_fp8_": Operator(
            "(Tensor(a!) quantized, Tensor(b!) residual, Tensor(c!) input, Tensor weight, Tensor "
            "scale, float eps, str group, float weight_bias=0.0, Tensor(d!)? output=None) -> ()",
            partial(norms.run_static, sums),
            check=partial(norms.check_static, sums),
        ),
        f"{sums}_rms_norm_dynamic_fp8_": Operator(
            "(Tensor(a!) quantized, Tensor(b!) scales, Tensor(c!) residual, Tensor(d!) input, "
            "Tensor weight, int? group_size, float eps, str group, float weight_bias=0.0, "
            "Tensor(e!)? output=None) -> ()",
            partial(norms.run_dynamic, sums),
            check=partial(norms.check_dynamic, sums),
        ),
    }


_FORM = (
    "int experts, int max_tokens, int top_k, int hidden, int scales, ScalarType dtype, int align, "
    "str group"
)
"""The arguments of permutations after the tensors."""

IN_PLACE = {
    "all_reduce_": Operator("(Tensor(a!) tensor, str op, str group) -> ()", collectives.all_reduce),
    **_norms("all_reduce"),
    **_norms("reduce_scatter"),
    "all_gather_into_tensor_": Operator(
        "(Tensor(a!) output, Tensor input, str group) -> ()", collectives.all_gather_into_tensor
    ),
    "all_gather_v_": Operator(
        "(Tensor(a!) output, Tensor input, SymInt[] sizes, str group) -> ()",
        collectives.all_gather_v,
    ),
    "all_gather_v_list_": Operator(
        "(Tensor(a!)[] outputs, Tensor[] inputs, SymInt[] sizes, str group) -> ()",
        lists.all_gather_v_list,
    ),
    "reduce_scatter_tensor_": Operator(
        "(Tensor(a!) output, Tensor input, str op, str group) -> ()",
        collectives.reduce_scatter_tensor,
    ),
    "reduce_scatter_v_": Operator(
        "(Tensor(a!) output, Tensor input, SymInt[] sizes, str op, str group) -> ()",
        collectives.reduce_scatter_v,
    ),
    "dispatch_": Operator(
        "(Tensor(a!) workspace, Tensor rows, Tensor ids, Tensor weights, Tensor? scales, "
        "int experts, int max_tokens, str group) -> ()",
        routes.run_dispatch,
        check=routes.check_dispatch,
    ),
    "combine_": Operator(
        "(Tensor(a!) out, Tensor rows, Tensor ids, int experts, str group) -> ()",
        routes.run_combine,
        check=routes.check_combine,
    ),
    "permute_": Operator(
        f"(Tensor(a!) workspace, Tensor dispatched, {_FORM}) -> ()",
        permutes.run_permute,
        check=permutes.check_permute,
    ),
    "unpermute_": Operator(
        f"(Tensor(a!) out, Tensor rows, Tensor permuted, {_FORM}) -> ()",
        permutes.run_unpermute,
        check=permutes.check_unpermute,
    ),
    "broadcast_": Operator("(Tensor(a!) tensor, int group_src, str group) -> ()", _broadcast),
    "reduce_": Operator("(Tensor(a!) tensor, str op, int group_dst, str group) -> ()", _reduce),
    "scatter_": Operator(
        "(Tensor(a!) tensor, Tensor[] scatter_list, int group_src, str group) -> ()", _scatter
    ),
    "all_to_all_single_": Operator(
        "(Tensor(a!) output, Tensor input, int[]? output_split_sizes, int[]? input_split_sizes, "
        "str group, bool equal_splits=False) -> ()",
        _all_to_all,
    ),
}
"""The operators that write their arguments. Autograd does not follow them."""

FUNCTIONAL = {
    "all_reduce": Operator(
        "(Tensor tensor, str op, str group, bool symmetric=True) -> Tensor",
        collectives.all_reduce_into,
        _same,
        formulas.all_reduce,
    ),
    "all_gather_into_tensor": Operator(
        "(Tensor input, str group, bool symmetric=True) -> Tensor",
        collectives.all_gather_into_tensor,
        _gathered,
        formulas.all_gather_into_tensor,
    ),
    "all_gather_v": Operator(
        "(Tensor input, SymInt[] sizes, str group, bool symmetric=True) -> Tensor",
        collectives.all_gather_v,
        _all_parts,
        formulas.all_gather_v,
    ),
    "reduce_scatter_tensor": Operator(
        "(Tensor input, str op, str group, bool symmetric=True) -> Tensor",
        collectives.reduce_scatter_tensor,
        _scattered,
        formulas.reduce_scatter_tensor,
    ),
    "reduce_scatter_v": Operator(
        "(Tensor input, SymInt[] sizes, str op, str group, bool symmetric=True) -> Tensor",
        collectives.reduce_scatter_v,
        _own_part,
        formulas.reduce_scatter_v,
    ),
    "broadcast": Operator(
        "(Tensor tensor, int group_src, str group, bool symmetric=True) -> Tensor",
        collectives.broadcast_into,
        _same,
        formulas.broadcast,
    ),
    "reduce": Operator(
        "(Tensor tensor, str op, int group_dst, str group, bool symmetric=True) -> Tensor",
        rooted.reduce_into,
        _same,
        formulas.reduce,
    ),
    "gather": Operator(
        "(Tensor tensor, int group_dst, str group, bool symmetric=True) -> Tensor",
        rooted.gather_into,
        _stacked,
        formulas.gather,
    ),
    "scatter": Operator(
        "(Tensor rows, int group_src, str group, bool symmetric=True) -> Tensor",
        rooted.scatter_into,
        _row,
        formulas.scatter,
    ),
    "all_to_all_single": Operator(
        "(Tensor input, SymInt[]? output_split_sizes, SymInt[]? input_split_sizes, "
        "str group, bool symmetric=True) -> Tensor",
        _all_to_all,
        _exchanged,
        formulas.all_to_all_single,
    ),
    "dispatch": Operator(
        "(Tensor rows, Tensor ids, Tensor weights, Tensor? scales, int experts, int max_tokens, "
        "str group, bool symmetric=True) -> Tensor",
        routes.run_dispatch,
        routes.workspace_shape,
        dtype="uint8",
    ),
    "combine": Operator(
        "(Tensor rows, Tensor ids, int experts, str group, bool symmetric=True) -> Tensor",
        routes.run_combine,
        routes.combined_shape,
        formulas.combine,
    ),
    "permute": Operator(
        f"(Tensor dispatched, {_FORM}, bool symmetric=True) -> Tensor",
        permutes.run_permute,
        permutes.workspace_shape,
    ),
    "unpermute": Operator(
        f"(Tensor rows, Tensor permuted, {_FORM}, bool symmetric=True) -> Tensor",
        permutes.run_unpermute,
        permutes.unpermuted_shape,
        formulas.unpermute,
    ),
}
"""The operators that return new tensors: symmetric ones, unless the last argument is false.

With false, tensors are symmetric inside of a scope.
"""

OPERATORS = {**IN_PLACE, **FUNCTIONAL}


@cache
def register() -> Any:
    """Define the operators, once; they exist as long as what this returns."""
    module = pytorch().module
    made = module.library.Library("symmem", "DEF")

    def define(name: str, schema: str, run: Any, fake: Any) -> None:
        made.define(name + schema)
        made.impl(name, run, "CompositeExplicitAutograd")
        module.library.register_fake(f"symmem::{name}", fake, lib=made)

    define("no_gradient", formulas.SCHEMA, formulas.no_gradient, formulas.no_gradient_fake)
    made.impl("no_gradient", module.library.fallthrough_kernel, "Autograd")
    define("refused", formulas.REFUSED, formulas.refused, formulas.refused)
    module.library.register_autograd(
        "symmem::refused",
        formulas.refused_gradient,
        setup_context=formulas.keep_refused,
        lib=made,
    )
    for name, operator in IN_PLACE.items():
        define(name, operator.schema, _in_place(operator.run), operator.check or _nothing)
        made.impl(name, module.library.fallthrough_kernel, "Autograd")
    for name, operator in FUNCTIONAL.items():
        define(name, operator.schema, *_functional(operator))
        if operator.formula is None:
            made.impl(name, module.library.fallthrough_kernel, "Autograd")
        else:
            _add_gradient(module, made, name, operator)
    for name in OPERATORS:
        # A compiler must not drop a call because its rank does not use the result.
        module.fx.node.has_side_effect(getattr(module.ops.symmem, name).default)
    for function in (messages.send, messages.isend, messages.recv, messages.irecv):
        reason = f"symmem.{function.__name__} is not an operator, so a graph cannot contain it"
        compiled.untraced[function.__name__] = between_graphs(function, reason)
    return made


def _in_place(run: Callable[..., Any]) -> Callable[..., None]:
    """Make the kernel of an operator that returns nothing."""

    def kernel(*arguments: Any) -> None:
        run(*arguments)

    return kernel


def _nothing(*_: Any) -> None:
    """Be the fake of an operator that returns nothing."""


def _functional(
    operator: Operator,
) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]:
    """Make the kernel of an operator that returns a new tensor, and its fake."""
    shape = operator.shape
    assert shape is not None

    def dtype_for(input: torch.Tensor) -> torch.dtype:
        found: torch.dtype = input.dtype
        if operator.dtype is not None:
            found = getattr(pytorch().module, operator.dtype)
        return found

    def kernel(input: torch.Tensor, *others: Any) -> torch.Tensor:
        others, symmetric = _complete(others)
        group = find(others[-1])
        lengths = shape(Place(group.rank, group.size), input, *others)
        owner = group if symmetric else None
        output = memory.empty(group.runtime, lengths, dtype_for(input), owner)
        operator.run(output, input.contiguous(), *others)
        return output

    def fake(input: torch.Tensor, *others: Any) -> torch.Tensor:
        others, _ = _complete(others)
        # The group need not be open while the compiler asks for shapes.
        lengths = shape(session.place(others[-1]), input, *others)
        return input.new_empty(lengths, dtype=dtype_for(input))

    return kernel, fake


def _complete(others: tuple[Any, ...]) -> tuple[tuple[Any, ...], bool]:
    """Split the last argument off, whose default PyTorch does not pass.

    The argument before is the name of the group.
    """
    if isinstance(others[-1], bool):
        return others[:-1], others[-1]
    return others, True


def _add_gradient(module: Any, made: Any, name: str, operator: Operator) -> None:
    """Register the gradient of an operator that returns a new tensor."""
    formula = operator.formula
    assert formula is not None

    def keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.shape, ctx.count = inputs[0].shape, len(inputs)
        others, _ = _complete(inputs[1:])
        # Tensors come first. Autograd raises an error if they change before the backward pass.
        tensors = [other for other in others if isinstance(other, module.Tensor)]
        ctx.save_for_backward(*tensors)
        ctx.others = others[len(tensors) :]

    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        found = formula(gradient, ctx.shape, *ctx.saved_tensors, *ctx.others)
        return (found, *[None] * (ctx.count - 1))

    module.library.register_autograd(f"symmem::{name}", backward, setup_context=keep, lib=made)
