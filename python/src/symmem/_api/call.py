"""Prepares and queues one call of a collective."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from symmem import errors
from symmem._c.sites import warn
from symmem._rank.group import Group
from symmem._rank.groups import NotAMemberError
from symmem._rank.runtime import Runtime
from symmem._rank.session import find
from symmem._rank.streams import give_back, span_of
from symmem._rank.work import FinishedWork, HostWork, SideStream, Work, of_torch
from symmem._torch.autograd import refuse
from symmem._torch.factories import scratch
from symmem._torch.pytorch import pytorch
from symmem._torch.tensors import require_memory

if TYPE_CHECKING:
    import torch


def member(group: Any, name: str) -> Group | None:
    """Return the group of a call. If this rank is not in it, issue a warning and return None."""
    try:
        return find(group)
    except NotAMemberError as e:
        # As in torch.distributed, ranks outside the group may make the call.
        warn(UserWarning(f"{name} does nothing: {e}"))
        return None


def outside(async_op: bool) -> Work | None:
    """Return the result of a call on a rank that is not in the group."""
    return FinishedWork([]) if async_op else None


def checked(group: Group, name: str, tensor: torch.Tensor) -> bool:
    """Check a tensor's kind and device, and return whether it can be used without a copy."""
    device = group.runtime.device
    try:
        plain = tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()
        # get_device is cheap, and returns -1 for CPU tensors.
        ours = plain and tensor.get_device() == (-1 if device is None else device)
        if ours and (tensor.data_ptr() or not tensor.numel()):
            return True
    except (AttributeError, RuntimeError, ValueError):
        plain = False
    require_memory(name, tensor, device)
    return plain


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy of a tensor, with conjugation and negation applied."""
    return scratch(tuple(tensor.shape), tensor).copy_(tensor.detach())


def _check_writable(name: str, tensor: torch.Tensor) -> None:
    """Raise `InvalidError` if elements of an output share memory."""
    if pytorch().overlaps_itself(tensor):
        raise errors.InvalidError(
            f"elements of {name} share memory, so it cannot be written; pass a contiguous tensor"
        )


class Call:
    """Prepares a collective, queues it, and returns its work or waits for it.

    Tensors that are not contiguous are copied before and after the collective.
    """

    __slots__ = (
        "_asynchronous",
        "_back",
        "_host",
        "_lane",
        "_output",
        "_runtime",
        "_side",
        "_tracked",
        "_used",
        "group",
        "source",
        "stream",
    )

    def __init__(self, group: Group, async_op: bool, lane: str = ""):
        runtime = group.runtime
        self.group = group
        self._runtime: Runtime = runtime
        self._asynchronous = async_op
        self._side: SideStream | None = None
        # The tensors that the collective uses, and those that the caller passed for results.
        self._used: list[Any] = []
        self._output: list[Any] = []
        self._back: list[tuple[Any, Any]] = []
        self._tracked = False  # whether autograd tracks one of the tensors
        # The rank that sent the message, for calls that receive one.
        self.source: Any = None
        self._lane = lane
        self._host = group.lanes.main
        if runtime.device is None:
            self.stream = self._host.number
            return
        self.stream = runtime.stream()
        if async_op:
            self._side = runtime.side_stream(group.handle, lane)
            self._side.fork()
            self.stream = self._side.number

    def read(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Add an input, and return the contiguous tensor to read from."""
        plain = checked(self.group, name, tensor)
        self._tracked |= tensor.requires_grad
        if not plain:
            self._wait_for(tensor)
            self._used.append(tensor)  # The copy is made on the side stream.
            with self.as_current():
                tensor = _plain(tensor)
        self._used.append(tensor)
        return pytorch().module.view_as_real(tensor) if tensor.is_complex() else tensor

    def use(self, name: str, tensor: torch.Tensor) -> None:
        """Take a tensor with the strides that it has."""
        require_memory(name, tensor, self._runtime.device)
        self._used.append(tensor)

    def hold(self, *tensors: torch.Tensor) -> None:
        """Keep tensors alive that were already checked."""
        self._used.extend(tensors)

    def write(self, name: str, tensor: torch.Tensor, reads: bool = False) -> torch.Tensor:
        """Add an output, which is also an input if `reads` is set; return the tensor to write."""
        self._output.append(tensor)
        flat = tensor
        plain = checked(self.group, name, tensor)
        self._tracked |= tensor.requires_grad and not tensor.is_leaf
        if not plain:
            _check_writable(name, tensor)
            self._wait_for(tensor)
            with self.as_current():
                flat = _plain(tensor) if reads else scratch(tuple(tensor.shape), tensor)
            self._back.append((tensor, flat))
        self._used.append(flat)
        return pytorch().module.view_as_real(flat) if flat.is_complex() else flat

    def read_parts(self, name: str, tensors: list[torch.Tensor]) -> torch.Tensor:
        """Concatenate inputs into one tensor."""
        for tensor in tensors:
            require_memory(name, tensor, self._runtime.device)
            self._tracked |= tensor.requires_grad
            self._wait_for(tensor)
        self._used.extend(tensors)  # The copies are made on the side stream.
        with self.as_current():
            flat: torch.Tensor = pytorch().module.cat([t.detach().reshape(-1) for t in tensors])
        self._used.append(flat)
        return flat

    def write_parts(self, name: str, tensors: list[torch.Tensor]) -> torch.Tensor:
        """Return a flat tensor whose parts are copied to the given tensors after the collective."""
        for tensor in tensors:
            require_memory(name, tensor, self._runtime.device)
            self._tracked |= tensor.requires_grad and not tensor.is_leaf
            _check_writable(f"a tensor of {name}", tensor)
            self._wait_for(tensor)
        counts = [tensor.numel() for tensor in tensors]
        with self.as_current():
            flat = scratch((sum(counts),), tensors[0])
        self._output.extend(tensors)
        parts = zip(tensors, pytorch().module.split(flat, counts), strict=True)
        self._back.extend((tensor, part.view(tensor.shape)) for tensor, part in parts)
        self._used.append(flat)
        return flat

    def run(self, name: str, *arguments: Any) -> Work | None:
        """Queue the collective, then wait for it or return its work."""
        if self._lane and self._runtime.device is None:
            self._take_lane()
        return self.queue(name, self.group.handle, *arguments, self.stream)

    def queue(self, name: str, *arguments: Any) -> Work | None:
        """Do what `run` does, but with all arguments of the C function."""
        runtime = self._runtime
        if runtime.streams.busy:
            self.order()
        previous = runtime.set_site() if runtime.callsites else None
        try:
            runtime.library.call(name, *arguments)
        except BaseException:
            give_back(self._host)
            raise
        finally:
            if previous is not None:
                runtime.library.raw.symmem_set_site(previous)
        work = self.finish()
        if self._tracked:
            refuse(f"{name}, which writes in place,", self._output)
        return work

    def _take_lane(self) -> None:
        self._host = self.group.lanes.take(self._runtime.streams)
        self.stream = self._host.number

    def order(self) -> None:
        """Make the stream wait for unfinished work of other groups on the same memory."""
        streams = self._runtime.streams
        if streams.busy:
            streams.order(self._host, [span_of(t) for t in self._used])

    def as_current(self) -> AbstractContextManager[Any]:
        """Return a context in which PyTorch queues its work on the call's stream."""
        if self._side is None:
            return nullcontext()
        stream: AbstractContextManager[Any] = pytorch().module.cuda.stream(self._side.stream)
        return stream

    def finish(self) -> Work | None:
        """Return the work. On the host backend, wait for it unless the call is asynchronous."""
        if self._runtime.device is None:
            return self._finish_on_host()
        if self._back:
            with self.as_current():
                self._copy_back()
            self._used.extend(tensor for tensor, _ in self._back)
        if self._side is None:
            return None
        return self._side.work(self._used, self._output, self.source)

    def _finish_on_host(self) -> Work | None:
        group = self.group
        if self._asynchronous and not self._back:
            made: Work = of_torch(HostWork)(
                self._runtime.streams, self._host, self._used, self._output, self.source
            )
            return made
        try:
            self._runtime.streams.synchronize(self._host)
        except BaseException as e:
            # After an interrupted wait, the collective may still use the tensors.
            group.abort_if_interrupted(e)
            with suppress(errors.SymmemError):
                left = self._runtime.streams.add(self._host, self._used, self.source)
                left.reported = True
            raise
        give_back(self._host)
        self._copy_back()
        return of_torch(FinishedWork)(self._output) if self._asynchronous else None

    def _copy_back(self) -> None:
        for tensor, flat in self._back:
            # Autograd does not see the collective, so it must not see this copy either.
            tensor.data.copy_(flat)

    def _wait_for(self, tensor: torch.Tensor) -> None:
        """Wait for unfinished work on a tensor that the host is about to access."""
        if self._runtime.streams.busy:
            self._runtime.streams.wait_for([span_of(tensor)])
