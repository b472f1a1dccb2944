"""Functions that query and configure groups: paths, statistics, checks and faults."""

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
    """The path that a collective takes, and the reason.

    Attributes:
        operation: the name of the collective.
        path: "plain", "window", "direct" or "two-level".
        why: the reason for the choice.
        registers: whether the call would first register memory.
    """

    operation: str
    path: str
    why: str
    registers: bool

    def __str__(self) -> str:
        """Return a one-line description."""
        first = ", after registering" if self.registers else ""
        return f"{self.operation}: {self.path} path{first}: {self.why}"


def explain(
    operation: str,
    input: torch.Tensor,
    output: torch.Tensor | None = None,
    group: GroupLike = None,
) -> Explanation:
    """Return the path that a collective on these tensors would take now, without communication.

    Args:
        operation: all_reduce, all_gather, reduce_scatter, broadcast or all_to_all. The longer names
            of torch.distributed, such as all_gather_into_tensor, are also accepted.
        input: the tensor that the collective would read.
        output: the tensor that it would write; the default is the input.
        group: any argument that `symmem.group` accepts; the default is the world.
    """
    found = find(group)
    name = operation.upper().removesuffix("_INTO_TENSOR").removesuffix("_TENSOR")
    name = name.removesuffix("_SINGLE")
    try:
        code = Operation[name]
    except KeyError:
        raise InvalidError(
            f"unknown operation {operation!r}; want all_reduce, all_gather, reduce_scatter, "
            "broadcast or all_to_all"
        ) from None
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
    """Return statistics of pools (bytes, windows), groups (calls by path) and streams.

    Args:
        group: any group of the world; the default is the world of `symmem.init`.
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
    """Compare the histories of all ranks of the group. Collective.

    On GPUs, the location of every tensor that PyTorch allocated in the group's memory is also
    compared.

    Raises:
        DivergenceError: ranks differ. The error shows both sides of the first difference.
    """
    found = find(group)
    runtime = found.runtime
    if runtime.cuda is not None:
        note_blocks(runtime.cuda, found.library, found.pool)
    found.library.call("symmem_check", found.handle)


def set_check(level: CheckLevel, group: GroupLike = None) -> None:
    """Set how much the ranks of the world compare. Collective over the world.

    Args:
        level: "off", "registration", "every" or "default".
        group: any group of the world; the default is the world of `symmem.init`.
    """
    runtime = find(group).runtime
    runtime.require()
    runtime.library.call("symmem_world_set_check", runtime.world, check_level(level))


def is_symmetric(tensor: torch.Tensor, group: GroupLike = None) -> bool:
    """Return whether a tensor is in a window of the group, without communication."""
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
    # Gaps between a tensor's elements need not be counted, because no allocation of PyTorch crosses
    # the end of a window.
    return i > 0 and address + tensor.nbytes <= ends[i - 1]


def failed() -> bool:
    """Return whether any group of this process, in any world, has failed since `init`.

    The last results of a failed group are invalid. The function reads a single word, so a loop that
    replays graphs can call it in every iteration. The word changes within 50 ms after a kernel has
    reported a fault. The error is raised by `check`, `synchronize` or the next call on the group.
    """
    runtime = session.anyone
    return bool(runtime.library.words[2] != runtime.faults)  # Word.FAULTS


def set_path(path: PathChoice, group: GroupLike = None) -> None:
    """Set the path of a group's calls, or "auto" for the tuning table's choice. Collective."""
    find(group).set_path(path_choice(path))
