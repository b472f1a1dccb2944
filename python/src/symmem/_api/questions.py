"""Queries and settings: paths of calls, statistics, comparisons of ranks, faults."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from symmem._c.constants import check_level, path_choice
from symmem._c.terms import Operation
from symmem._rank.group import Group
from symmem._rank.session import find, session
from symmem._torch.places import note_blocks
from symmem._torch.pytorch import pytorch
from symmem._torch.tensors import has_memory, require_memory
from symmem.errors import InvalidError

if TYPE_CHECKING:
    import torch

    from symmem._api.terms import CheckLevel, GroupLike, PathChoice


@dataclass(frozen=True)
class Explanation:
    """Which path a collective takes, and why.

    Attributes:
        operation: the collective's name.
        path: "plain", "window", "direct" or "two-level".
        why: what decided.
        registers: whether the call would register memory first.
    """

    operation: str
    path: str
    why: str
    registers: bool

    def __str__(self) -> str:
        """Return one line for people."""
        first = ", after registering" if self.registers else ""
        return f"{self.operation}: {self.path} path{first}: {self.why}"


def explain(
    operation: str,
    input: torch.Tensor,
    output: torch.Tensor | None = None,
    group: GroupLike = None,
) -> Explanation:
    """Report which path a collective on these tensors would take now. It does not communicate.

    Args:
        operation: all_reduce, all_gather, reduce_scatter, broadcast or all_to_all, with or without
            the rest of the name that torch.distributed gives it.
        input: what is read.
        output: what is written; the input unless given.
        group: as `symmem.group` takes it; the world unless given.
    """
    found = find(group)
    name = operation.upper().removesuffix("_INTO_TENSOR").removesuffix("_TENSOR")
    name = name.removesuffix("_SINGLE")
    try:
        code = Operation[name]
    except KeyError:
        raise InvalidError(f"operation {operation!r}: one of all_reduce, all_gather, ...") from None
    if code is Operation.ALL_TO_ALL and found.runtime.device is None:
        code = Operation.ALL_TO_ALL_V
    target = input if output is None else output
    for what, tensor in {"input": input, "output": target}.items():
        if not has_memory(tensor):
            require_memory(what, tensor, found.runtime.device)
    count = {
        Operation.REDUCE_SCATTER: target.numel(),
        Operation.ALL_TO_ALL: input.numel() // found.size,
        Operation.ALL_TO_ALL_V: input.numel() // found.size,
    }.get(code, input.numel())
    kind = pytorch().element(input.dtype)
    data = found.library.json(
        "symmem_explain", found.handle, code, count, kind, input.data_ptr(), target.data_ptr()
    )
    return Explanation(data["operation"], data["path"], data["why"], bool(data["registers"]))


def stats(group: GroupLike = None) -> dict[str, Any]:
    """Count everything: pools with their bytes and windows, groups with paths, streams.

    Args:
        group: any group of the world that is meant; the world of `symmem.init` unless given.
    """
    runtime = find(group).runtime
    runtime.require()
    found = runtime.library.json("symmem_world_stats", runtime.world)
    if runtime.cuda is not None:
        found["lanes"] = {
            pool: {str(key): len(lanes) for key, lanes in router.lanes.items()}
            for pool, router in runtime.cuda.routers.items()
        }
    return found


def check(group: GroupLike = None) -> None:
    """Compare what all ranks of the group have done so far. Collective.

    On GPUs the place of every tensor that PyTorch made in the group's memory is compared, too.

    Raises:
        DivergenceError: ranks differ, with the first difference and both sides of it.
    """
    found = find(group)
    runtime = found.runtime
    if runtime.cuda is not None:
        note_blocks(runtime.cuda, found.library, found.pool)
    found.library.call("symmem_check", found.handle)


def set_check(level: CheckLevel, group: GroupLike = None) -> None:
    """Change how much ranks compare: off, registration or every. Collective over the world.

    Args:
        level: the level.
        group: any group of the world that is meant; the world of `symmem.init` unless given.
    """
    runtime = find(group).runtime
    runtime.require()
    runtime.library.call("symmem_world_set_check", runtime.world, check_level(level))


def is_symmetric(tensor: torch.Tensor, group: GroupLike = None) -> bool:
    """Report whether a tensor lies in a window of the group. It does not communicate."""
    found = group if group.__class__ is Group else find(group)
    table = found.windows
    seen, starts, ends = table.copy
    if table.words[1] != seen:  # Word.WINDOWS
        _, starts, ends = table.refresh()
    try:
        address = tensor.data_ptr()
    except (RuntimeError, ValueError):
        address = 0
    if not address and not has_memory(tensor):
        require_memory("tensor", tensor, found.runtime.device)
    i = bisect_right(starts, address)
    # No allocation of PyTorch crosses the end of a window, so gaps between the elements of a tensor
    # need not be counted.
    return i > 0 and address + tensor.nbytes <= ends[i - 1]


def failed() -> bool:
    """Report whether a group of this process has failed since `init`, in any world.

    The last results of such a group are invalid. The function reads one word, so a loop that
    replays graphs can call it in every round. The word changes within 50 ms of a report by a
    kernel. `check`, `synchronize` or the next call on the group raises the fault.
    """
    runtime = session.anyone
    return bool(runtime.library.words[2] != runtime.faults)  # Word.FAULTS


def set_path(path: PathChoice, group: GroupLike = None) -> None:
    """Set who chooses a group's paths: auto, plain, window or direct. Collective."""
    find(group).set_path(path_choice(path))
