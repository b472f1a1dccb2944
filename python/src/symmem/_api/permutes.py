"""The rows of a mixture of experts by expert, as grouped matrix products need them."""

from __future__ import annotations

import ctypes as c
from typing import TYPE_CHECKING, Any, NamedTuple

from symmem import errors
from symmem._api import compiled
from symmem._api.call import Call
from symmem._api.routes import Dispatched, Shape, offsets_after, offsets_of, require_ranks, want
from symmem._c.arguments import PermuteArguments
from symmem._rank import memory
from symmem._rank.session import find, session
from symmem._torch.autograd import refuse
from symmem._torch.pytorch import compiling, modules, pytorch

if TYPE_CHECKING:
    import torch

    from symmem._api.terms import GroupLike
    from symmem._rank.groups import Place


class Permuted(NamedTuple):
    """The result of `permute_tokens`: views of one tensor.

    Attributes:
        rows: [capacity, hidden]. The rows of an expert are adjacent, in the order of the ranks, and
            then of the places and ids of `Dispatched`.
        experts: int32 [capacity], the number of each row's expert among those of this rank. Rows
            without an expert have -1, and nothing else of them is written.
        weights: float32 [capacity].
        scales: float32 [capacity, scales], or None.
        firsts: int32 [experts + 1], the first row of each expert of this rank, a multiple of
            `align`, and then the end of the last one. Its length is that for the rank with the
            most experts.
        counts: int32 [experts], the number of rows of each expert.
        places: int32 [ranks, max_tokens, top_k], the row of each id of `Dispatched`, or -1.
        workspace: the tensor that the others are views of.
    """

    rows: torch.Tensor
    experts: torch.Tensor
    weights: torch.Tensor
    scales: torch.Tensor | None
    firsts: torch.Tensor
    counts: torch.Tensor
    places: torch.Tensor
    workspace: torch.Tensor


class _Form(NamedTuple):
    """The arguments that determine a layout, in the order of the operators."""

    experts: int
    max_tokens: int
    top_k: int
    hidden: int
    scales: int
    dtype: torch.dtype
    align: int

    def capacity(self, ranks: int) -> int:
        """Return the number of rows for any ids."""
        if not 1 <= self.align <= 4096:
            raise errors.InvalidError(f"experts are aligned to {self.align} rows; want 1 to 4096")
        if not 1 <= self.experts <= 512:
            raise errors.InvalidError(f"{self.experts} experts; want 1 to 512")
        ids = ranks * self.max_tokens * self.top_k
        return (ids + min(self.most(ranks), ids) * (self.align - 1)) // self.align * self.align

    def most(self, ranks: int) -> int:
        """Return the largest number of experts of a rank."""
        return (self.experts + ranks - 1) // ranks

    def offsets(self, ranks: int) -> list[int]:
        """Return the offsets of the parts of a workspace, and its size."""
        rows, most = self.capacity(ranks), self.most(ranks)
        return offsets_after(
            rows * self.hidden * self.dtype.itemsize,
            rows * self.scales * 4,
            rows * 4,
            rows * 4,
            ranks * self.max_tokens * self.top_k * 4,
            (most + 1) * 4,
            most * 4,
            ranks * 4,
        )


def permute_tokens(
    got: Dispatched,
    experts: int,
    align: int = 128,
    group: GroupLike = None,
    workspace: torch.Tensor | None = None,
) -> Permuted:
    """Reorder the result of `dispatch_tokens` by expert; a row is copied for each of its experts.

    The result fits grouped matrix products: `experts` is `m_indices` of DeepGEMM, and `firsts[1:]`
    is `offs` of `torch._grouped_mm`. Numbers of rows stay on the GPU, so the call can be captured.
    It uses only the memory of this rank and does not wait for others.

    Args:
        got: the result of `dispatch_tokens`.
        experts: as in `dispatch_tokens`.
        align: the first row of each expert is a multiple of it; up to 4096.
        group: any argument that `symmem.group` accepts; the default is the world.
        workspace: receives the result: the workspace of another result of the same form. The
            default is a new one. Its size suffices for any ids.
    """
    ranks, max_tokens, hidden = got.rows.shape
    scales = 0 if got.scales is None else got.scales.shape[-1]
    form = _Form(experts, max_tokens, got.ids.shape[-1], hidden, scales, got.rows.dtype, align)
    _check_ranks("got", ranks, group)
    if workspace is None:
        workspace = got.workspace.new_empty(form.offsets(ranks)[-1])
    check_permute(workspace, got.workspace)
    if compiling():
        name = compiled.group_name(group)
        compiled.operators().permute_(workspace, got.workspace, *form, name)
    else:
        run_permute(workspace, got.workspace, *form, group)
    permuted, name = _views(workspace, ranks, form), "symmem.permute_tokens"
    return permuted._replace(
        rows=compiled.refusing(name, permuted.rows, got.rows),
        weights=compiled.refusing(name, permuted.weights, got.weights),
        scales=None
        if permuted.scales is None
        else compiled.refusing(name, permuted.scales, got.scales),
    )


def unpermute_tokens(
    rows: torch.Tensor,
    permuted: Permuted,
    experts: int,
    align: int = 128,
    group: GroupLike = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Add up the rows that experts computed, each multiplied by its weight, for `combine_tokens`.

    Products are added in the order of the ids, in float32, and the sum is rounded once. The call
    uses only the memory of this rank and does not wait for others.

    Args:
        rows: bfloat16 [capacity, hidden], the results for `permuted.rows`.
        permuted: the result of `permute_tokens`.
        experts: as in `permute_tokens`.
        align: as in `permute_tokens`.
        group: any argument that `symmem.group` accepts; the default is the world.
        out: receives the sums: bfloat16 [ranks, max_tokens, hidden], at the places of the
            dispatched rows. Other places are not written. The default is a new symmetric tensor.
    """
    ranks, max_tokens, top_k = permuted.places.shape
    scales = 0 if permuted.scales is None else permuted.scales.shape[-1]
    dtype, hidden = permuted.rows.dtype, permuted.rows.shape[-1]
    form = _Form(experts, max_tokens, top_k, hidden, scales, dtype, align)
    _check_ranks("permuted", ranks, group)
    lengths = permuted.rows.shape[0], permuted.counts.shape[0]
    if lengths != (form.capacity(ranks), form.most(ranks)):
        raise errors.InvalidError(
            f"permuted has {lengths[0]} rows and {lengths[1]} experts, but the arguments are for "
            f"{form.capacity(ranks)} and {form.most(ranks)}: pass the experts and align of "
            "permute_tokens"
        )
    if compiling():
        name = compiled.group_name(group)
        if out is None:
            out = compiled.operators().unpermute(rows, permuted.workspace, *form, name)
        else:
            compiled.operators().unpermute_(out, rows, permuted.workspace, *form, name)
        compiled.finished(False, "symmem.unpermute_tokens", [out], [rows, permuted.weights])
        return out
    if out is None:
        found = find(group)
        out = memory.empty(found.runtime, (ranks, max_tokens, hidden), rows.dtype, found)
    run_unpermute(out, rows, permuted.workspace, *form, group)
    if permuted.weights.requires_grad:
        refuse("symmem.unpermute_tokens, which writes in place,", [out])
    return out


def _check_ranks(name: str, ranks: int, group: GroupLike) -> None:
    place = session.place(compiled.group_name(group)) if compiling() else find(group)
    require_ranks(name, ranks, place.size)


def _views(workspace: torch.Tensor, ranks: int, form: _Form) -> Permuted:
    module = modules["torch"]
    offsets, rows, most = form.offsets(ranks), form.capacity(ranks), form.most(ranks)

    def view(part: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        count = dtype.itemsize
        for length in shape:
            count *= length
        return workspace[offsets[part] : offsets[part] + count].view(dtype).view(shape)

    return Permuted(
        view(0, form.dtype, rows, form.hidden),
        view(3, module.int32, rows),
        view(2, module.float32, rows),
        view(1, module.float32, rows, form.scales) if form.scales else None,
        view(5, module.int32, most + 1),
        view(6, module.int32, most),
        view(4, module.int32, ranks, form.max_tokens, form.top_k),
        workspace,
    )


def workspace_shape(place: Place, dispatched: torch.Tensor, *others: Any) -> tuple[int, ...]:
    """Return the shape of the result of the operator `permute`."""
    check_permute(dispatched, dispatched)
    return (_Form(*others[:-1]).offsets(place.size)[-1],)


def unpermuted_shape(
    place: Place, rows: torch.Tensor, permuted: torch.Tensor, *others: Any
) -> tuple[int, ...]:
    """Return the shape of the result of the operator `unpermute`."""
    form = _Form(*others[:-1])
    check_unpermute(None, rows, permuted, *others)
    return (place.size, form.max_tokens, form.hidden)


def check_permute(workspace: torch.Tensor, dispatched: torch.Tensor, *_: object) -> None:
    """Check the tensors of `permute_tokens`, also while a compiler traces `permute_`."""
    for name, tensor in (("workspace", workspace), ("dispatched", dispatched)):
        want(name, tensor, modules["torch"].uint8, (tensor.numel(),))


def check_unpermute(
    out: torch.Tensor | None, rows: torch.Tensor, permuted: torch.Tensor, *others: Any
) -> None:
    """Check the tensors of `unpermute_tokens`, also while a compiler traces `unpermute_`."""
    torch, form = modules["torch"], _Form(*others[:-1])
    want("permuted", permuted, torch.uint8, (permuted.numel(),))
    want("rows", rows, torch.bfloat16, (rows.shape[0] if rows.dim() else 0, form.hidden))
    if out is not None:
        ranks = out.shape[0] if out.dim() else 0
        want("out", out, torch.bfloat16, (ranks, form.max_tokens, form.hidden))


def run_permute(workspace: torch.Tensor, dispatched: torch.Tensor, *others: Any) -> None:
    """Run the operator `permute_`."""
    check_permute(workspace, dispatched)
    form, call = _Form(*others[:-1]), Call(find(others[-1]), False)
    dispatched = call.read("dispatched", dispatched)
    workspace = call.write("workspace", workspace)
    size, shape = call.group.size, Shape(form.top_k, form.hidden, form.scales)
    _require("dispatched", dispatched, offsets_of(size, form.max_tokens, shape, form.dtype)[-1])
    _require("workspace", workspace, form.offsets(size)[-1])
    arguments = _arguments(form)
    arguments.dispatched, arguments.permuted = dispatched.data_ptr(), workspace.data_ptr()
    call.run("symmem_permute", c.byref(arguments))


def run_unpermute(
    out: torch.Tensor, rows: torch.Tensor, permuted: torch.Tensor, *others: Any
) -> None:
    """Run the operator `unpermute_`."""
    check_unpermute(out, rows, permuted, *others)
    form, call = _Form(*others[:-1]), Call(find(others[-1]), False)
    rows, permuted = call.read("rows", rows), call.read("permuted", permuted)
    out = call.write("out", out, reads=True)
    size = call.group.size
    require_ranks("out", out.shape[0], size)
    if rows.shape[0] < form.capacity(size):
        raise errors.OutOfRangeError(
            f"rows has {rows.shape[0]} rows, but the call needs {form.capacity(size)}"
        )
    _require("permuted", permuted, form.offsets(size)[-1])
    arguments = _arguments(form)
    arguments.computed, arguments.permuted = rows.data_ptr(), permuted.data_ptr()
    arguments.returned = out.data_ptr()
    call.run("symmem_unpermute", c.byref(arguments))


def _require(name: str, tensor: torch.Tensor, total: int) -> None:
    if tensor.numel() < total:
        raise errors.OutOfRangeError(
            f"{name} has {tensor.numel()} bytes, but the call needs {total}"
        )


def _arguments(form: _Form) -> PermuteArguments:
    return PermuteArguments(
        size=c.sizeof(PermuteArguments),
        experts=form.experts,
        top_k=form.top_k,
        max_tokens=form.max_tokens,
        hidden=form.hidden,
        scales=form.scales,
        type=pytorch().element(form.dtype),
        align=form.align,
    )
