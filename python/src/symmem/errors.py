"""The exceptions and warnings of symmem.

Every error is a `SymmemError`. Many are also an exception of Python, so that code which does not
know symmem can handle them. `code` is the number that the C library gave.
"""

from __future__ import annotations

import builtins
from typing import Any, NamedTuple


class SymmemError(RuntimeError):
    """The base class of all errors.

    Attributes:
        code: the status of the C library, 0 for errors of the Python package.
        data: details beyond the message, such as both sides of a divergence.
    """

    code: int = 0

    def __init__(self, message: str, *, code: int = 0, data: dict[str, Any] | None = None):
        super().__init__(message)
        self.code = code
        self.data: dict[str, Any] = data or {}


class InvalidError(SymmemError, ValueError):
    """An argument that is wrong in every state."""


class UnsupportedError(SymmemError, NotImplementedError):
    """Something that the backend, this build or this PyTorch cannot do."""


class ClosedError(SymmemError):
    """Something was used that was closed: the runtime, a group, a pool."""


class OutOfMemoryError(SymmemError, MemoryError):
    """This rank cannot map more memory. The other ranks see a divergence at the next agreement."""


class Side(NamedTuple):
    """One side of a divergence: the ranks that have the same event.

    Attributes:
        ranks: their numbers in the world.
        event: what they did.
        site: the line of Python that did it, "file:line", without lines of PyTorch; always set
            for `symmem.agree`, `combine` and `step`, otherwise empty without SYMMEM_CALLSITES=1.
            With a larger number it begins with the callers, joined by " > ".
        before: for `symmem.agree`, `combine` and `step` the last ten values, the latest first, each
            with its line.
    """

    ranks: tuple[int, ...]
    event: str
    site: str
    before: tuple[str, ...] = ()


class DivergenceError(SymmemError):
    """Ranks did different things where they must do the same.

    `MismatchError`, `DeadlockError` and `MessageError` are kinds of it.

    Every rank of the group gets the same error, before any wrong sum. It is final for the group,
    except for values and steps that `symmem.agree` and `symmem.step` compare. The message names the
    first event at which they differ, with what each rank has there, and with SYMMEM_CALLSITES=1
    the lines of Python.
    """

    @property
    def sides(self) -> list[Side]:
        """The sides at the first difference."""
        found = self.data.get("divergence", {}).get("variants") or []
        return [
            Side(tuple(v["ranks"]), v["event"], v.get("site") or "", tuple(v.get("before") or ()))
            for v in found
        ]


class MismatchError(DivergenceError):
    """Ranks made different calls at the same place of a group, or the ends of a message differ.

    No buffer of any rank was written.
    """

    @property
    def others(self) -> list[int]:
        """The ranks of the world whose calls differ from this rank's."""
        return list(self.data.get("divergence", {}).get("deviant") or [])


class DeadlockError(DivergenceError):
    """Ranks wait for each other in different places, or have left the group."""

    @property
    def elsewhere(self) -> dict[int, str]:
        """Where the other ranks are, by their numbers in the world."""
        found = self.data.get("divergence", {}).get("elsewhere") or {}
        return {int(rank): where for rank, where in found.items()}


class MessageEnds(NamedTuple):
    """The two ends of a message, or of all messages of a pair of ranks with one tag.

    Attributes:
        source: the rank of the world that sends, -1 for a `recv` from any rank.
        dst: the rank of the world that receives.
        tag: the tag.
        number: which message of the pair and the tag, from 1, or 0 for all of them.
        sent: what the sender has, in the unit of `MessageError.fault`.
        received: what the receiver has.
    """

    source: int
    dst: int
    tag: int
    number: int
    sent: int
    received: int


class MessageError(DivergenceError):
    """The two ends of messages do not fit together.

    A `send` has no `recv` or the other way round, or their sizes or splits differ.
    """

    @property
    def fault(self) -> str:
        """In what they differ.

        "unmatched", "out of step", "sizes differ", "types differ" or "splits differ".
        """
        return str(self.data.get("divergence", {}).get("why") or "")

    @property
    def ends(self) -> list[MessageEnds]:
        """The messages, as far as they are known."""
        found = self.data.get("divergence", {}).get("messages") or []
        return [
            MessageEnds(e["from"], e["to"], e["tag"], e.get("number", 0), e["sent"], e["received"])
            for e in found
        ]


class TimeoutError(SymmemError, builtins.TimeoutError):
    """Ranks did not arrive by the deadline; the message names them and what they were doing."""

    @property
    def missing(self) -> list[int]:
        """The ranks of the world that did not arrive."""
        return list(self.data.get("timeout", {}).get("missing") or [])


class AbsentError(TimeoutError):
    """Ranks have not come to open symmem, or to make a group."""


class RankLostError(SymmemError, ConnectionError):
    """The processes of some ranks have ended."""

    @property
    def ranks(self) -> list[int]:
        """Those ranks, by their numbers in the world."""
        return list(self.data.get("rank_lost", {}).get("ranks") or [])


class CapturingError(SymmemError):
    """Something was asked for that may not happen while a CUDA graph is captured.

    It is raised before anything is done, so the capture is still good.
    """


class OutOfRangeError(SymmemError, IndexError):
    """A tensor is too short for a collective, or runs past its window."""


class AbortedError(SymmemError):
    """The group was aborted on one of its ranks."""


class InterruptedError(SymmemError, builtins.InterruptedError):
    """A wait was interrupted. If a handler of a signal did it, its exception is raised instead."""


class BusyError(SymmemError):
    """Work in progress on some rank may use memory that is to be suspended."""


class SuspendedError(SymmemError):
    """The memory is suspended. Call `symmem.resume` on every rank."""


class ForkedError(SymmemError):
    """symmem was used in a child of `fork`. Start processes with spawn or forkserver."""


class MemoryUseError(SymmemError):
    """Memory was freed twice, used after it was freed, or is not symmem's."""


class InternalError(SymmemError):
    """The library failed in a way that is a bug of it. The message has the trace."""


class LibraryError(SymmemError, ImportError):
    """libsymmem.so cannot be loaded here; the message says what to do."""


class TorchError(SymmemError, ImportError):
    """A function needs PyTorch, or a newer version of it."""


class LateWarning(UserWarning):
    """This rank has waited long for ranks that are alive, and continues to wait.

    The first comes after half a minute and further ones once a minute, while Python waits in a call
    of symmem's. If the ranks do not arrive within the timeout, `TimeoutError` is raised.

    Attributes:
        data: details: "group", "doing", "waited_ms", "ranks" and "activity".
    """

    def __init__(self, message: str, *, data: dict[str, Any] | None = None):
        super().__init__(message)
        self.data: dict[str, Any] = data or {}

    @property
    def ranks(self) -> list[int]:
        """The ranks of the world that have not come."""
        return list(self.data.get("ranks") or [])

    @property
    def waited(self) -> float:
        """How many seconds this rank has waited."""
        return float(self.data.get("waited_ms") or 0) / 1000


class GrowthInCaptureWarning(UserWarning):
    """Memory had to grow while a CUDA graph was captured, so it is not in windows yet.

    The collectives that were captured over it take the path that ordinary tensors of their size
    take (direct or plain) on every rank, and none that needs windows. Reserve more memory before
    the capture.
    """
