"""Decides which calls of an engine's group run on symmem.

All ranks of a group must make the same decision. They exchange the facts that may differ between
them once, when the engine creates the group. Later decisions depend only on properties that are the
same on all ranks: the operation, the number and type of the elements, and whether the tensors are
symmetric.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._api import collectives, norms, opening, questions, scopes
from symmem._c.constants import BYTES, Word
from symmem._c.library import library
from symmem._rank.group import Group
from symmem._rank.rendezvous import Meeting, machine, machine_key
from symmem._torch.pytorch import compiling, pytorch
from symmem.engines.scratch import Scratch

if TYPE_CHECKING:
    import torch

    from symmem._api.terms import Backend

EXCHANGE_TIMEOUT = 60.0
"""How long ranks wait for each other's facts before leaving the group to the engine, in seconds."""

REDUCTIONS = frozenset({"all_reduce", "reduce_scatter", "reduce_scatter_v"})
"""The operations that reduce. They support fewer element types than operations that only copy."""

ON_GPUS = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"}
"""The operations that symmem runs on GPUs if the tuning table has a fast path for the call."""

ALWAYS_ON_GPUS: set[str] = set()
"""The operations that symmem always runs on GPUs. It is empty except in benchmarks."""

MAX_BYTES = 32 << 20
"""On GPUs, inputs of at least this size are left to the engine.

For such sizes, NCCL was up to 4% faster in eager mode.
"""

NORM_HIDDEN = 16384
"""The largest size of a row in a fused norm."""

MAX_ANSWERS = 4096
"""The maximum number of decisions that a group caches."""


def switched_off(variable: str) -> bool:
    """Return whether an environment variable turns a plug-in off."""
    return os.environ.get(variable, "").strip().lower() in ("0", "false", "off", "no")


def deterministic() -> bool:
    """Return whether SYMMEM_DETERMINISTIC requires a formula for reductions."""
    return os.environ.get("SYMMEM_DETERMINISTIC", "").lower() not in ("", "0", "any", "false")


def _needs_gradients(*tensors: torch.Tensor) -> bool:
    """Return whether autograd records operations on some of the tensors."""
    return pytorch().module.is_grad_enabled() and any(t.requires_grad for t in tensors)


class Takeover:
    """The symmem group that runs calls of an engine's group, or the reason why there is none.

    Attributes:
        group: symmem's group of the same ranks, or None if the engine runs all calls.
        size: the number of ranks of the group.
        scratch: symmetric tensors of the group, or None if the engine runs all calls.
        reason: the reason why the engine runs all calls. It is empty if `group` is set.
    """

    def __init__(self, group: Group | None, reason: str = ""):
        self.group = group
        self._name = group.name if group is not None else ""
        self.size = group.size if group is not None else 0
        self.scratch = Scratch(group) if group is not None else None
        self.reason = reason
        device = group.runtime.device if group is not None else None
        self._gpu = device is not None
        self._device = -1 if device is None else device  # as in Tensor.get_device
        self._reducible = pytorch().types if group is not None else {}
        self._answers: dict[tuple[Any, ...], bool] = {}
        self._suspensions: set[str] = set()

    def takes(self, operation: str, input: torch.Tensor, output: torch.Tensor | int | None) -> bool:
        """Return whether symmem runs a call. All ranks get the same answer.

        Args:
            operation: a name in `ON_GPUS`, "all_gather_v", "reduce_scatter_v", "send" or "recv".
            input: the input, or a tensor like it.
            output: the output. If it is a new tensor, pass the number of its rows, or None if it
                is like the input.
        """
        if self.group is None:
            return False
        if self._gpu:
            return input.is_cuda and self._fast(operation, input, output)
        return input.device.type == "cpu" and self._knows(operation, input.dtype)

    def receives(self, dtype: torch.dtype) -> bool:
        """Return whether symmem receives messages of a dtype. All ranks get the same answer."""
        if self.group is None or (self._gpu and "recv" not in ALWAYS_ON_GPUS):
            return False
        return self._knows("recv", dtype)

    def takes_rows(self, operation: str, tensors: list[torch.Tensor], rows: int) -> bool:
        """Return whether symmem runs a call with different numbers of rows on different ranks.

        To be the same on all ranks, the answer assumes equal numbers of rows.

        Args:
            operation: "all_gather_v" or "reduce_scatter_v".
            tensors: the rows of this rank, or of all ranks.
            rows: the total number of rows.
        """
        if self.group is None or not self._gpu or operation in ALWAYS_ON_GPUS:
            return all(self.takes(operation, tensor, rows) for tensor in tensors)
        key = (operation, rows, *[(t.shape[1:], t.dtype, t.is_cuda) for t in tensors])
        found = self._answers.get(key)
        if found is None:
            if len(self._answers) >= MAX_ANSWERS:
                self._answers.clear()
            found = rows > 0 and all(self._beats_rows(operation, t, rows) for t in tensors)
            self._answers[key] = found
        return found

    def _beats_rows(self, operation: str, tensor: torch.Tensor, rows: int) -> bool:
        """Return the uncached answer of `takes_rows` for one tensor."""
        if not tensor.is_cuda:
            return False
        part = -(-rows // self.size)
        few = tensor.new_empty((part, *tensor.shape[1:]))
        all_ = tensor.new_empty((part * self.size, *tensor.shape[1:]))
        pair = (few, all_) if operation == "all_gather_v" else (all_, few)
        return self._beats(operation.removesuffix("_v"), *pair)

    def _knows(self, operation: str, dtype: torch.dtype) -> bool:
        """Return whether symmem supports an operation for a dtype."""
        if operation in REDUCTIONS:
            return dtype in self._reducible
        return dtype.itemsize in BYTES

    def all_reduce_rms_norm(
        self, input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Sum rows over all ranks, add the residual, and return the normalized sum and the sum.

        The result is None, on all ranks, if the engine should make these steps itself.
        """
        group = self.group
        if group is None or not self._takes_norm(input, residual, weight):
            return None
        added = residual.clone()
        try:
            return norms.run_checked(group, input, added, weight, eps), added
        except errors.UnsupportedError:  # All ranks get the error.
            self._answers[self._norm_key(input)] = False
            return None

    def _takes_norm(
        self, input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
    ) -> bool:
        """Return whether a norm's tensors fit and symmem's kernel is faster than separate steps.

        All ranks get the same answer.
        """
        shape, dtype, device = input.shape, input.dtype, self._device
        if input.get_device() != device or _needs_gradients(input, residual, weight):
            return False
        if residual.shape != shape or weight.shape != shape[-1:] or not input.is_contiguous():
            return False
        for each in (residual, weight):
            if each.dtype is not dtype or each.get_device() != device or not each.is_contiguous():
                return False
        key = self._norm_key(input)
        found = self._answers.get(key)
        if found is None:
            found = self._answers[key] = self._beats_norm(input)
        return found

    def _beats_norm(self, input: torch.Tensor) -> bool:
        """Return the uncached answer of `_takes_norm` for tensors that fit each other."""
        half = pytorch().module.bfloat16, pytorch().module.float16
        hidden = input.shape[-1] if input.dim() else 0
        if (
            input.dtype not in half
            or not 0 < hidden <= NORM_HIDDEN
            or hidden % 8
            or input.numel() == 0
            or not self.takes("all_reduce", input, None)
        ):
            return False
        target = input.new_empty(input.shape)
        path = questions.explain("all_reduce", input, target, self.group).path
        return not self._gpu or path == "direct"

    def _norm_key(self, input: torch.Tensor) -> tuple[Any, ...]:
        return "norm", input.shape, input.dtype, self.symmetric(input)

    def group_argument(self) -> Any:
        """Return the `group` argument for a call: the name if PyTorch is tracing the caller."""
        return self._name if compiling() else self.group

    def symmetric(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is in symmetric memory of the group."""
        if self.group is None:
            return False
        windows = self.group.windows
        if not windows.copy[1] and windows.copy[0] == windows.words[Word.WINDOWS]:
            return False  # The group has no symmetric memory.
        return questions.is_symmetric(tensor, self.group)

    def suspend(self, purpose: str) -> None:
        """Release the group's GPU memory until every purpose has called `resume`. Collective.

        Captured graphs stay valid. The scratch tensors are zero afterwards.
        """
        if self.group is None:
            return
        if not self._suspensions:
            scopes.suspend(self.group)
        self._suspensions.add(purpose)

    def resume(self, purpose: str) -> None:
        """Undo `suspend` for a purpose, if it was called. Collective."""
        if self.group is not None and self._suspensions == {purpose}:
            scopes.resume(self.group)
        self._suspensions.discard(purpose)

    def close(self) -> None:
        """Close symmem's world on this rank. From then on, the engine runs all calls."""
        group, self.group, self.scratch = self.group, None, None
        if group is not None:
            self.reason = "the group was destroyed"
            group.close(force=True)

    def _fast(self, operation: str, input: torch.Tensor, output: torch.Tensor | int | None) -> bool:
        """Return whether the tuning table has a path for a call that is faster than plain NCCL.

        Answers are cached, because this check slows down every call that the engine runs itself.
        """
        if operation not in ON_GPUS:
            return operation in ALWAYS_ON_GPUS and self._knows(operation, input.dtype)
        given = output is not None and not isinstance(output, int)
        symmetric_output = given and self.symmetric(output)  # type: ignore[arg-type]
        key = (operation, input.shape, input.dtype, self.symmetric(input), symmetric_output)
        found = self._answers.get(key)
        if found is None:
            if len(self._answers) >= MAX_ANSWERS:
                self._answers.clear()
            found = self._answers[key] = self._beats(operation, input, output)
        return found

    def _beats(
        self, operation: str, input: torch.Tensor, output: torch.Tensor | int | None
    ) -> bool:
        """Return the uncached answer of `_fast`."""
        if input.nbytes >= MAX_BYTES or not self._knows(operation, input.dtype):
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
    """Open a symmem world for an engine's group unless there is a reason not to.

    Collective over the process group.

    Args:
        name: the name of the group, for errors.
        process_group: the engine's process group for tensors on `device`.
        device: the device of this rank.
        refusals: reasons to leave the group to the engine, which must be the same on all ranks.
            Empty ones are ignored.
    """
    refusal = next(filter(None, refusals), "") or _first_refusal(process_group, _unable())
    if refusal:
        return Takeover(None, refusal)
    group: Group | None = None
    try:
        backend: Backend = "host" if device.type == "cpu" else "nccl"
        cuda = None if device.type == "cpu" else device
        group = opening.open_world(process_group, backend=backend, device=cuda, name=name)
        _warm_up(group, device)
    except (errors.SymmemError, RuntimeError) as e:
        refusal = str(e)
    refusal = _first_refusal(process_group, refusal)
    if refusal and group is not None:
        group.close(force=True)
    return Takeover(None, refusal) if refusal else Takeover(group)


def _unable() -> str:
    """Return why this rank cannot load symmem's library, or an empty string if it can."""
    try:
        library()
    except errors.SymmemError as e:
        return str(e)
    return ""


def _first_refusal(process_group: Any, refusal: str) -> str:
    """Exchange the ranks' reasons to leave a group to the engine, and return the first.

    The result is empty if no rank has a reason and all ranks are on one machine.
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
    """Exchange one fact per rank through the store of a process group. Collective."""
    found = pytorch()
    store = found.store_of(process_group)
    if store is None:
        raise errors.UnsupportedError("its process group has no store")
    ranks = found.ranks_of(process_group)
    rank = ranks.index(found.distributed.get_rank())
    with Meeting(store, rank, len(ranks), EXCHANGE_TIMEOUT, -1) as meeting:
        meeting.publish(machine_key(rank), json.dumps(fact))
        values = meeting.await_values(*[machine_key(r) for r in range(len(ranks))])
    return [json.loads(value) for value in values]


def _warm_up(group: Group, device: torch.device) -> None:
    """Run a first call, and raise an error if its result is wrong.

    The call loads kernels and allocates memory before the engine measures its free memory.
    """
    ones = pytorch().module.ones(8, dtype=pytorch().module.float32, device=device)
    collectives.all_reduce(ones, group=group)
    if ones.tolist() != [float(group.size)] * 8:
        raise errors.InternalError(
            f"the sum of ones over {group.size} ranks is wrong: {ones.tolist()}"
        )


def report(
    logger: logging.Logger, engine: str, name: str, takeover: Takeover, calls: Mapping[str, str]
) -> None:
    """Log in one line which calls of a group symmem runs and which the engine runs.

    Args:
        logger: the engine's logger.
        engine: the name of the engine.
        name: the name of the group.
        takeover: the takeover of the group.
        calls: the operation of each call that the plug-in can take over, by the call's name.
    """
    group = takeover.group
    if group is None:
        logger.info("symmem leaves the group %s to %s: %s", name, engine, takeover.reason)
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
