"""Decides which calls of an engine's group run on symmem.

All ranks of a group decide the same. Facts that may differ between ranks are exchanged once, when
the engine makes the group. Later decisions depend only on what is equal on all ranks: the
operation, the number and type of the elements, and whether tensors are symmetric.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._api import collectives, opening, questions
from symmem._c.constants import BYTES, Word
from symmem._c.library import library
from symmem._rank.group import Group
from symmem._rank.rendezvous import Meeting, machine, machine_key
from symmem._torch.pytorch import compiling, pytorch
from symmem.engines.scratch import Scratch

if TYPE_CHECKING:
    import torch

    from symmem._api.terms import Backend

LIMIT = 60.0
"""How many seconds ranks wait for each other's facts before the engine keeps the group."""

REDUCTIONS = frozenset({"all_reduce", "reduce_scatter", "reduce_scatter_v"})
"""The operations that compute, which symmem has for fewer types than those that copy."""

ON_GPUS = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"}
"""The operations that are taken over on GPUs, where the tuning table has a fast path for them."""

ALWAYS_ON_GPUS: set[str] = set()
"""The operations that are taken over on GPUs whatever the table has; measurements fill it."""

MOST_BYTES = 32 << 20
"""The size from which inputs on GPUs are the engine's: there NCCL was up to 4 % faster, eager."""

MOST_ANSWERS = 4096
"""How many decisions about sizes a group remembers."""


def switched_off(variable: str) -> bool:
    """Report whether a variable of the environment switches a plug-in off."""
    return os.environ.get(variable, "").strip().lower() in ("0", "false", "off", "no")


def deterministic() -> bool:
    """Report whether symmem will open with deterministic reductions."""
    return os.environ.get("SYMMEM_DETERMINISTIC", "").lower() not in ("", "0", "any", "false")


class Takeover:
    """The symmem group that serves one group of an engine, or the reason why there is none.

    Attributes:
        group: symmem's group of the same ranks; None if the engine keeps all calls.
        size: the number of its ranks.
        scratch: its symmetric tensors; None if the engine keeps all calls.
        reason: why the engine keeps all calls; empty if `group` is set.
    """

    def __init__(self, group: Group | None, reason: str = ""):
        self.group = group
        self._name = group.name if group is not None else ""
        self.size = group.size if group is not None else 0
        self.scratch = Scratch(group) if group is not None else None
        self.reason = reason
        self._gpu = group is not None and group.runtime.device is not None
        self._reducible = pytorch().types if group is not None else {}
        self._answers: dict[tuple[Any, ...], bool] = {}

    def takes(self, operation: str, input: torch.Tensor, output: torch.Tensor | int | None) -> bool:
        """Report whether symmem runs a call. All ranks get the same answer.

        Args:
            operation: a name of `ON_GPUS`, "all_gather_v", "reduce_scatter_v", "send" or "recv".
            input: what is read, or a tensor like it.
            output: what is written; for a new tensor the number of its rows, or None if it is like
                the input.
        """
        if self.group is None:
            return False
        if self._gpu:
            return input.is_cuda and self._fast(operation, input, output)
        return input.device.type == "cpu" and self._knows(operation, input.dtype)

    def receives(self, dtype: torch.dtype) -> bool:
        """Report whether symmem receives the messages of a type. All ranks get the same answer."""
        if self.group is None or (self._gpu and "recv" not in ALWAYS_ON_GPUS):
            return False
        return self._knows("recv", dtype)

    def takes_rows(self, operation: str, tensor: torch.Tensor, rows: int) -> bool:
        """Report whether symmem runs a call with a different number of rows on each rank.

        Args:
            operation: "all_gather_v" or "reduce_scatter_v".
            tensor: the rows of this rank, or of all ranks.
            rows: the number of rows of all ranks. Each rank gets the answer for equal parts.
        """
        if self.group is None or not self._gpu or operation in ALWAYS_ON_GPUS:
            return self.takes(operation, tensor, rows)
        if not tensor.is_cuda or rows == 0:
            return False
        key = (operation, rows, tensor.shape[1:], tensor.dtype)
        found = self._answers.get(key)
        if found is None:
            if len(self._answers) >= MOST_ANSWERS:
                self._answers.clear()
            part = -(-rows // self.size)
            few = tensor.new_empty((part, *tensor.shape[1:]))
            all_ = tensor.new_empty((part * self.size, *tensor.shape[1:]))
            pair = (few, all_) if operation == "all_gather_v" else (all_, few)
            found = self._answers[key] = self._beats(operation.removesuffix("_v"), *pair)
        return found

    def _knows(self, operation: str, dtype: torch.dtype) -> bool:
        """Report whether symmem has an operation for a type of elements."""
        if operation in REDUCTIONS:
            return dtype in self._reducible
        return dtype.itemsize in BYTES

    def which(self) -> Any:
        """Return the group for a call: its name where PyTorch traces the caller."""
        return self._name if compiling() else self.group

    def symmetric(self, tensor: torch.Tensor) -> bool:
        """Report whether a tensor lies in symmetric memory of the group."""
        if self.group is None:
            return False
        windows = self.group.windows
        if not windows.copy[1] and windows.copy[0] == windows.words[Word.WINDOWS]:
            return False  # The group has no symmetric memory.
        return questions.is_symmetric(tensor, self.group)

    def close(self) -> None:
        """Close symmem's world on this rank; the engine keeps all calls after that."""
        group, self.group, self.scratch = self.group, None, None
        if group is not None:
            self.reason = "the group was destroyed"
            group.close(force=True)

    def _fast(self, operation: str, input: torch.Tensor, output: torch.Tensor | int | None) -> bool:
        """Report whether the tuning table has a path that beats plain NCCL for a call.

        The engine pays for this in each call that it keeps, so answers are remembered.
        """
        if operation not in ON_GPUS:
            return operation in ALWAYS_ON_GPUS and self._knows(operation, input.dtype)
        given = output is not None and not isinstance(output, int)
        there = given and self.symmetric(output)  # type: ignore[arg-type]
        key = (operation, input.shape, input.dtype, self.symmetric(input), there)
        found = self._answers.get(key)
        if found is None:
            if len(self._answers) >= MOST_ANSWERS:
                self._answers.clear()
            found = self._answers[key] = self._beats(operation, input, output)
        return found

    def _beats(
        self, operation: str, input: torch.Tensor, output: torch.Tensor | int | None
    ) -> bool:
        """Ask the tuning table about a call."""
        if input.nbytes >= MOST_BYTES or not self._knows(operation, input.dtype):
            return False
        target = output
        if target is None:
            target = input.new_empty(input.shape)
        elif isinstance(target, int):
            target = input.new_empty((target, *input.shape[1:]))
        return questions.explain(operation, input, target, self.group).path != "plain"


def take_over(
    name: str, process_group: Any, device: torch.device, refusals: Iterable[str]
) -> Takeover:
    """Open a world of symmem for a group of an engine, or find the reason not to.

    Collective over the process group.

    Args:
        name: the engine's name of the group, for errors.
        process_group: the engine's group for tensors of `device`.
        device: the device of this rank.
        refusals: reasons to leave the group to the engine; empty texts are none. They must be the
            same on all ranks.
    """
    refusal = next(filter(None, refusals), "") or _first_refusal(process_group, _unable())
    if refusal:
        return Takeover(None, refusal)
    group: Group | None = None
    try:
        backend: Backend = "host" if device.type == "cpu" else "nccl"
        of = None if device.type == "cpu" else device
        group = opening.open_world(process_group, backend=backend, device=of, name=name)
        _warm_up(group, device)
    except (errors.SymmemError, RuntimeError) as e:
        refusal = str(e)
    refusal = _first_refusal(process_group, refusal)
    if refusal and group is not None:
        group.close(force=True)
    return Takeover(None, refusal) if refusal else Takeover(group)


def _unable() -> str:
    """Return why this rank cannot load symmem's library, or an empty text."""
    try:
        library()
    except errors.SymmemError as e:
        return str(e)
    return ""


def _first_refusal(process_group: Any, refusal: str) -> str:
    """Exchange reasons to leave a group to the engine, and return the first; empty if none has one.

    Ranks on several machines are one more reason.
    """
    try:
        facts = _exchange(process_group, {"machine": machine(), "refusal": refusal})
    except errors.SymmemError as e:
        return str(e)
    if len({fact["machine"] for fact in facts}) > 1:
        return "its ranks are on several machines"
    texts = [fact["refusal"] for fact in facts]
    return next((f"rank {rank}: {text}" for rank, text in enumerate(texts) if text), "")


def _exchange(process_group: Any, fact: dict[str, str]) -> list[dict[str, str]]:
    """Exchange one fact of each rank through the store of a process group. Collective over it."""
    found = pytorch()
    store = found.store_of(process_group)
    if store is None:
        raise errors.UnsupportedError("its process group has no store")
    ranks = found.ranks_of(process_group)
    rank = ranks.index(found.distributed.get_rank())
    with Meeting(store, rank, len(ranks), LIMIT, -1) as meeting:
        meeting.publish(machine_key(rank), json.dumps(fact))
        values = meeting.await_values(*[machine_key(r) for r in range(len(ranks))])
    return [json.loads(value) for value in values]


def _warm_up(group: Group, device: torch.device) -> None:
    """Run a first call, so that kernels are loaded and memory is taken before the engine counts it.

    A sum of ones that is not the number of ranks raises.
    """
    ones = pytorch().module.ones(8, dtype=pytorch().module.float32, device=device)
    collectives.all_reduce(ones, group=group)
    if ones.tolist() != [float(group.size)] * 8:
        raise errors.InternalError(f"a sum of ones over {group.size} ranks is {ones.tolist()}")


def report(
    logger: logging.Logger, engine: str, name: str, made: Takeover, calls: Mapping[str, str]
) -> None:
    """Log which calls of a group symmem runs and which the engine keeps, in one line.

    Args:
        logger: where the line goes.
        engine: the engine's name.
        name: the engine's name of the group.
        made: the takeover of the group.
        calls: the operations of the calls that the plug-in can take over, by the calls' names.
    """
    group = made.group
    if group is None:
        logger.info("symmem leaves the group %s to %s: %s", name, engine, made.reason)
        return
    gpus = group.runtime.device is not None
    taken = [c for c, o in calls.items() if not gpus or o in ON_GPUS or o in ALWAYS_ON_GPUS]
    kept = [c for c in calls if c not in taken]
    logger.info(
        "symmem runs %s of %s's group %s of %d ranks%s; %s keeps %s",
        ", ".join(taken),
        engine,
        name,
        group.size,
        ", where its tuning table has a faster path than NCCL" if gpus else "",
        engine,
        ", ".join([*kept, "other calls"]),
    )
