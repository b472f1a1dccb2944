"""The exceptions and warnings of symmem.

Every error is a `SymmemError`. Many also derive from one of Python's own exceptions, so that code
without knowledge of symmem can handle them.
"""

from __future__ import annotations

import builtins
from typing import Any, NamedTuple


class SymmemError(RuntimeError):
    """The base class of all errors.

    Attributes:
        code: the status returned by the C library, or 0 for errors of the Python package.
        data: details in addition to the message, such as both sides of a divergence.
    """

    code: int = 0

    def __init__(self, message: str, *, code: int = 0, data: dict[str, Any] | None = None):
        self.args = (message,)  # The compiler cannot trace a call of super().
        self.code = code
        self.data: dict[str, Any] = data or {}


class InvalidError(SymmemError, ValueError):
    """An argument is invalid."""


class UnsupportedError(SymmemError, NotImplementedError):
    """The backend, this build or this version of PyTorch does not support the operation."""


class ClosedError(SymmemError):
    """The runtime, group or pool has been closed."""


class OutOfMemoryError(SymmemError, MemoryError):
    """This rank cannot map more memory. At the next agreement, the other ranks get an error."""


class Side(NamedTuple):
    """One side of a divergence: ranks with the same event.

    Attributes:
        ranks: the world ranks.
        event: the event.
        site: the Python line that caused the event, "file:line", ignoring frames of PyTorch. It is
            always set for `symmem.agree`, `combine` and `step`, and otherwise only with
            SYMMEM_CALLSITES=1. With a larger number, the callers precede it, separated by " > ".
        before: for `symmem.agree`, `combine` and `step`, the last ten values with their lines, the
            latest first.
    """

    ranks: tuple[int, ...]
    event: str
    site: str
    before: tuple[str, ...] = ()


class DivergenceError(SymmemError):
    """The histories or calls of ranks differ where they must be the same.

    The subclasses are `MismatchError`, `DeadlockError` and `MessageError`.

    Every rank of the group gets the same error before any wrong result. The group has then failed,
    except after a comparison of values or steps by `symmem.agree` or `symmem.step`. The message
    shows the first event that differs on each side and, with SYMMEM_CALLSITES=1, its Python line.
    """

    @property
    def sides(self) -> list[Side]:
        """The sides of the first difference."""
        found = self.data.get("divergence", {}).get("variants") or []
        return [
            Side(tuple(v["ranks"]), v["event"], v.get("site") or "", tuple(v.get("before") or ()))
            for v in found
        ]


class MismatchError(DivergenceError):
    """Calls with the same ticket differ between ranks, or the two ends of a message differ.

    No buffer has been written on any rank.
    """

    @property
    def others(self) -> list[int]:
        """The world ranks whose calls differ from this rank's."""
        return list(self.data.get("divergence", {}).get("deviant") or [])


class DeadlockError(DivergenceError):
    """Ranks wait for each other in different calls, or have left the group."""

    @property
    def elsewhere(self) -> dict[int, str]:
        """What the other ranks are doing, by world rank."""
        found = self.data.get("divergence", {}).get("elsewhere") or {}
        return {int(rank): where for rank, where in found.items()}


class MessageEnds(NamedTuple):
    """The two ends of a message, or of all messages with the same sender, receiver and tag.

    Attributes:
        source: the sender's world rank, or -1 for a `recv` from any rank.
        dst: the receiver's world rank.
        tag: the tag.
        number: the message's position among those with this sender, receiver and tag, from 1; 0 for
            all of them.
        sent: the number on the sender, such as a size. `MessageError.fault` names its kind.
        received: the corresponding number on the receiver.
    """

    source: int
    dst: int
    tag: int
    number: int
    sent: int
    received: int


class MessageError(DivergenceError):
    """The two ends of a message do not match.

    A `send` has no `recv` or vice versa, or their sizes, types or splits differ.
    """

    @property
    def fault(self) -> str:
        """The kind of mismatch.

        It is "unmatched", "out of step", "sizes differ", "types differ" or "splits differ".
        """
        return str(self.data.get("divergence", {}).get("why") or "")

    @property
    def ends(self) -> list[MessageEnds]:
        """The messages that are known to be affected."""
        found = self.data.get("divergence", {}).get("messages") or []
        return [
            MessageEnds(e["from"], e["to"], e["tag"], e.get("number", 0), e["sent"], e["received"])
            for e in found
        ]


class TimeoutError(SymmemError, builtins.TimeoutError):
    """Ranks did not arrive before the timeout. The message names them and their activity."""

    @property
    def missing(self) -> list[int]:
        """The world ranks that did not arrive."""
        return list(self.data.get("timeout", {}).get("missing") or [])


class AbsentError(TimeoutError):
    """Ranks did not arrive to open a world or a group."""


class RankLostError(SymmemError, ConnectionError):
    """The processes of some ranks have exited or crashed."""

    @property
    def ranks(self) -> list[int]:
        """The world ranks of the lost processes."""
        return list(self.data.get("rank_lost", {}).get("ranks") or [])


class CapturingError(SymmemError):
    """The operation is not allowed while a CUDA graph is being captured.

    The error is raised before the operation has any effect, so the capture remains valid.
    """


class OutOfRangeError(SymmemError, IndexError):
    """A tensor is too short for a collective, or extends beyond its window."""


class AbortedError(SymmemError):
    """The group was aborted on one of its ranks."""


class InterruptedError(SymmemError, builtins.InterruptedError):
    """A signal interrupted a wait. If its handler raised an exception, that is raised instead."""


class BusyError(SymmemError):
    """Memory cannot be suspended, because unfinished work on some rank may use it."""


class SuspendedError(SymmemError):
    """The memory is suspended. Call `symmem.resume` on every rank."""


class ForkedError(SymmemError):
    """symmem was used in a forked child. Start processes with spawn or forkserver."""


class MemoryUseError(SymmemError):
    """Memory was freed twice, was used after it was freed, or does not belong to symmem."""


class InternalError(SymmemError):
    """The library has a bug. The message contains the stack trace."""


class LibraryError(SymmemError, ImportError):
    """libsymmem.so cannot be loaded. The message says what to do."""


class TorchError(SymmemError, ImportError):
    """A function needs PyTorch, or a newer version of it."""


class LateWarning(UserWarning):
    """This rank has been waiting for a long time for ranks that are alive, and still waits.

    While Python waits in a call of symmem, the first warning is issued after half a minute, and
    further ones every minute. If the ranks do not arrive within the timeout, the call raises
    `TimeoutError`.

    Attributes:
        data: details: "group", "doing", "waited_ms", "ranks" and "activity".
    """

    def __init__(self, message: str, *, data: dict[str, Any] | None = None):
        super().__init__(message)
        self.data: dict[str, Any] = data or {}

    @property
    def ranks(self) -> list[int]:
        """The world ranks that have not arrived."""
        return list(self.data.get("ranks") or [])

    @property
    def waited(self) -> float:
        """The time that this rank has waited, in seconds."""
        return float(self.data.get("waited_ms") or 0) / 1000


class GrowthInCaptureWarning(UserWarning):
    """Memory grew while a CUDA graph was captured, so it is not yet in a window.

    On every rank, captured collectives on this memory use the path for ordinary tensors of their
    size (direct or plain) instead of one that needs windows. Reserve more memory before the
    capture.
    """
