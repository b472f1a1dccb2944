"""The exchange of rows in a mixture of experts: each row goes to the ranks of its experts."""

from __future__ import annotations

import ctypes as c
from typing import TYPE_CHECKING, Any, NamedTuple

from symmem import errors
from symmem._api import compiled
from symmem._api.call import Call
from symmem._c.arguments import RouteArguments
from symmem._rank import memory
from symmem._rank.session import find, session
from symmem._torch.pytorch import compiling, modules, pytorch

if TYPE_CHECKING:
    import torch

    from symmem._api.terms import GroupLike
    from symmem._rank.groups import Place

_ALIGN = 128


class Dispatched(NamedTuple):
    """The result of `dispatch_tokens`: views of one tensor.

    Attributes:
        rows: [ranks, max_tokens, hidden]. The first places of each rank have the rows of its tokens
            that have experts on this rank, in the order of the tokens.
        ids: int32 [ranks, max_tokens, top_k]. Experts of other ranks are -1, and so are all ids of
            places without a row.
        weights: float32 [ranks, max_tokens, top_k].
        scales: float32 [ranks, max_tokens, scales], or None.
        counts: int32 [ranks + 1], the number of rows from each rank, and then the number of this
            rank's ids, other than -1, that belong to no expert.
        workspace: the tensor that the others are views of.
    """

    rows: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    scales: torch.Tensor | None
    counts: torch.Tensor
    workspace: torch.Tensor


def dispatch_tokens(
    rows: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    experts: int,
    max_tokens: int,
    scales: torch.Tensor | None = None,
    group: GroupLike = None,
    workspace: torch.Tensor | None = None,
) -> Dispatched:
    """Send each token's row once to every rank that owns one of its experts.

    Each rank owns a contiguous range of experts, and the first ranks one expert more if the numbers
    do not divide. Row counts stay on the GPU, so calls can be captured and replayed with other ids.

    Args:
        rows: [tokens, hidden] of any dtype that is not complex, such as float8. The size of a row
            is a multiple of 16 bytes.
        ids: int32 [tokens, top_k], at most 16 for each token; -1 means no expert.
        weights: float32 [tokens, top_k].
        experts: the number of experts of all ranks, at most 512.
        max_tokens: the maximum number of tokens of any rank, at most 32768.
        scales: float32 [tokens, scales], or None.
        group: any argument that `symmem.group` accepts; the default is the world.
        workspace: receives the result; see `dispatch_workspace`. The default is a new one.

    Raises:
        UnsupportedError: the GPUs cannot access each other's memory, or the workspace is not
            symmetric although max_tokens is above 512 or it has more than about 14 MiB. All ranks
            get the error.
        InvalidError: shapes or dtypes do not match. The call has had no effect.
    """
    check_dispatch(workspace, rows, ids, weights, scales)
    shape = Shape(ids.shape[-1], rows.shape[-1], 0 if scales is None else scales.shape[-1])
    if compiling():
        name = compiled.group_name(group)
        size = session.place(name).size
        operators = compiled.operators()
        tensors = rows, ids, weights, scales
        if workspace is None:
            workspace = operators.dispatch(*tensors, experts, max_tokens, name)
        else:
            operators.dispatch_(workspace, *tensors, experts, max_tokens, name)
    else:
        size = find(group).size
        if workspace is None:
            workspace = dispatch_workspace(*shape[:2], max_tokens, rows.dtype, shape.scales, group)
        _dispatch(workspace, rows, ids, weights, scales, experts, max_tokens, group)
    got = _views(workspace, size, max_tokens, shape, rows.dtype)
    name = "symmem.dispatch_tokens"
    return got._replace(
        rows=compiled.refusing(name, got.rows, rows),
        weights=compiled.refusing(name, got.weights, weights),
        scales=None if got.scales is None else compiled.refusing(name, got.scales, scales),
    )


def dispatch_workspace(
    top_k: int,
    hidden: int,
    max_tokens: int,
    dtype: torch.dtype,
    scales: int = 0,
    group: GroupLike = None,
) -> torch.Tensor:
    """Allocate a symmetric tensor for the result of `dispatch_tokens`."""
    found = find(group)
    shape = Shape(top_k, hidden, scales)
    total = offsets_of(found.size, max_tokens, shape, dtype)[-1]
    return memory.empty(found.runtime, (total,), pytorch().module.uint8, found)


def combine_tokens(
    rows: torch.Tensor,
    ids: torch.Tensor,
    experts: int,
    group: GroupLike = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return rows to the ranks that dispatched them, and add up the rows of each token.

    Sums are not weighted. They are computed in float32, in the order of ranks, and rounded once.
    They do not depend on other tokens. The row of a token without experts is 0.

    Args:
        rows: bfloat16 [ranks, max_tokens, hidden], at the places of the dispatched rows. On GPUs it
            must be symmetric if max_tokens is above 512 or it has more than about 14 MiB. Other
            places have no effect.
        ids: the ids that this rank passed to `dispatch_tokens`.
        experts: as in `dispatch_tokens`.
        group: any argument that `symmem.group` accepts; the default is the world.
        out: receives the sums, [tokens, hidden]; the default is a new tensor.
    """
    if out is None:
        out = rows.new_empty(ids.shape[0], rows.shape[-1])
    check_combine(out, rows, ids)
    if compiling():
        name = compiled.group_name(group)
        compiled.operators().combine_(out, rows, ids, experts, name)
        compiled.finished(False, "symmem.combine_tokens", [out], [rows])
        return out
    _combine(out, rows, ids, experts, group)
    return out


class Shape(NamedTuple):
    """The sizes of a token's tensors."""

    top_k: int
    hidden: int
    scales: int


def offsets_of(ranks: int, max_tokens: int, shape: Shape, dtype: torch.dtype) -> list[int]:
    """Return the offsets of rows, scales, weights, ids and counts, and the total size."""
    places = ranks * max_tokens
    return offsets_after(
        places * shape.hidden * dtype.itemsize,
        places * shape.scales * 4,
        places * shape.top_k * 4,
        places * shape.top_k * 4,
        (ranks + 1) * 4,
    )


def offsets_after(*sizes: int) -> list[int]:
    """Return the offsets of parts with the given sizes, and the total size."""
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + (size + _ALIGN - 1) // _ALIGN * _ALIGN)
    return offsets


def _views(
    workspace: torch.Tensor, ranks: int, max_tokens: int, shape: Shape, dtype: torch.dtype
) -> Dispatched:
    module = modules["torch"]
    offsets = offsets_of(ranks, max_tokens, shape, dtype)

    def view(part: int, dtype: torch.dtype, last: int) -> torch.Tensor:
        count = ranks * max_tokens * last * dtype.itemsize
        flat = workspace[offsets[part] : offsets[part] + count]
        return flat.view(dtype).view(ranks, max_tokens, last)

    return Dispatched(
        view(0, dtype, shape.hidden),
        view(3, module.int32, shape.top_k),
        view(2, module.float32, shape.top_k),
        view(1, module.float32, shape.scales) if shape.scales else None,
        workspace[offsets[4] : offsets[4] + 4 * (ranks + 1)].view(module.int32),
        workspace,
    )


def workspace_shape(
    place: Place,
    rows: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    scales: torch.Tensor | None,
    experts: int,
    max_tokens: int,
    group: str,
) -> tuple[int, ...]:
    """Return the shape of the result of the operator `dispatch`."""
    check_dispatch(None, rows, ids, weights, scales)
    shape = Shape(ids.shape[1], rows.shape[1], 0 if scales is None else scales.shape[1])
    return (offsets_of(place.size, max_tokens, shape, rows.dtype)[-1],)


def combined_shape(
    place: Place, rows: torch.Tensor, ids: torch.Tensor, *others: object
) -> tuple[int, ...]:
    """Return the shape of the result of the operator `combine`."""
    check_combine(None, rows, ids)
    return (ids.shape[0], rows.shape[-1])


def spread(
    rows: torch.Tensor, ids: torch.Tensor, experts: int, max_tokens: int, group: str
) -> torch.Tensor:
    """Dispatch rows, and return the received rows, with zeros in places without a row."""
    module = modules["torch"]
    size = session.place(group).size
    weights = rows.new_zeros(tuple(ids.shape), dtype=module.float32)
    workspace = module.ops.symmem.dispatch(rows, ids, weights, None, experts, max_tokens, group)
    shape = Shape(ids.shape[1], rows.shape[1], 0)
    got = _views(workspace, size, max_tokens, shape, rows.dtype)
    places = module.arange(max_tokens, device=rows.device)
    is_used = places < got.counts[:size, None]
    spread_rows: torch.Tensor = module.where(is_used[..., None], got.rows, rows.new_zeros(()))
    return spread_rows


def want(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Raise `InvalidError` unless a tensor has the given dtype and shape."""
    if tensor.dtype is not dtype:
        raise errors.InvalidError(f"{name} has dtype {tensor.dtype}; want {dtype}")
    if tuple(tensor.shape) != tuple(shape):
        raise errors.InvalidError(f"{name} has shape {tuple(tensor.shape)}; want {tuple(shape)}")


def require_ranks(name: str, ranks: int, size: int) -> None:
    """Raise `InvalidError` unless the arguments have places for all ranks of a group."""
    if ranks != size:
        raise errors.InvalidError(f"{name} has places for {ranks} ranks, but the group has {size}")


def check_dispatch(
    workspace: torch.Tensor | None,
    rows: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    scales: torch.Tensor | None,
    *_: object,
) -> None:
    """Check the tensors of `dispatch_tokens`, also while a compiler traces `dispatch_`."""
    torch = modules["torch"]
    if rows.dim() != 2 or ids.dim() != 2:
        raise errors.InvalidError(
            f"rows and ids have shapes {tuple(rows.shape)} and {tuple(ids.shape)}; want matrices"
        )
    if rows.is_complex():
        raise errors.InvalidError("rows are complex; pass torch.view_as_real(rows).flatten(1)")
    shape = (rows.shape[0], ids.shape[1])
    want("ids", ids, torch.int32, shape)
    want("weights", weights, torch.float32, shape)
    if scales is not None:
        want("scales", scales, torch.float32, (shape[0], scales.shape[-1] if scales.dim() else 0))
    if workspace is not None and (workspace.dim() != 1 or workspace.dtype is not torch.uint8):
        raise errors.InvalidError("workspace is not the result of symmem.dispatch_workspace")


def check_combine(
    out: torch.Tensor | None, rows: torch.Tensor, ids: torch.Tensor, *_: object
) -> None:
    """Check the tensors of `combine_tokens`, also while a compiler traces `combine_`."""
    torch = modules["torch"]
    if rows.dim() != 3 or ids.dim() != 2:
        raise errors.InvalidError(
            f"rows and ids have shapes {tuple(rows.shape)} and {tuple(ids.shape)}; want rows "
            "[ranks, max_tokens, hidden] and ids [tokens, top_k]"
        )
    want("rows", rows, torch.bfloat16, tuple(rows.shape))
    want("ids", ids, torch.int32, tuple(ids.shape))
    if out is not None:
        want("out", out, torch.bfloat16, (ids.shape[0], rows.shape[2]))


def run_dispatch(
    workspace: torch.Tensor,
    rows: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    scales: torch.Tensor | None,
    *others: Any,
) -> None:
    """Run the operator `dispatch_`."""
    check_dispatch(workspace, rows, ids, weights, scales)
    _dispatch(workspace, rows, ids, weights, scales, *others)


def _dispatch(
    workspace: torch.Tensor,
    rows: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    scales: torch.Tensor | None,
    experts: int,
    max_tokens: int,
    group: GroupLike,
) -> None:
    call = Call(find(group), False)
    rows, ids = call.read("rows", rows), call.read("ids", ids)
    weights = call.read("weights", weights)
    workspace = call.write("workspace", workspace)
    shape = Shape(ids.shape[1], rows.shape[1], 0 if scales is None else scales.shape[1])
    total = offsets_of(call.group.size, max_tokens, shape, rows.dtype)[-1]
    if workspace.numel() < total:
        raise errors.OutOfRangeError(
            f"workspace has {workspace.numel()} bytes, but the call needs {total}"
        )
    arguments = _arguments(rows, ids, experts, max_tokens)
    arguments.type = pytorch().element(rows.dtype)
    arguments.weights, arguments.recv = weights.data_ptr(), workspace.data_ptr()
    if scales is not None:
        scales = call.read("scales", scales)
        arguments.scales, arguments.row_scales = shape.scales, scales.data_ptr()
    call.run("symmem_dispatch", c.byref(arguments))


def run_combine(
    out: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor, experts: int, group: GroupLike
) -> None:
    """Run the operator `combine_`."""
    check_combine(out, rows, ids)
    _combine(out, rows, ids, experts, group)


def _combine(
    out: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor, experts: int, group: GroupLike
) -> None:
    call = Call(find(group), False)
    rows, ids, out = call.read("rows", rows), call.read("ids", ids), call.write("out", out)
    require_ranks("rows", rows.shape[0], call.group.size)
    arguments = _arguments(rows, ids, experts, rows.shape[1])
    arguments.type, arguments.recv = pytorch().element(rows.dtype), out.data_ptr()
    call.run("symmem_combine", c.byref(arguments))


def _arguments(
    rows: torch.Tensor, ids: torch.Tensor, experts: int, max_tokens: int
) -> RouteArguments:
    return RouteArguments(
        size=c.sizeof(RouteArguments),
        experts=experts,
        top_k=ids.shape[1],
        max_tokens=max_tokens,
        hidden=rows.shape[-1],
        tokens=ids.shape[0],
        ids=ids.data_ptr(),
        send=rows.data_ptr(),
    )
