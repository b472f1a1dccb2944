"""Checked pads: the memory of signals between kernels, and errors about failed waits."""

from __future__ import annotations

import contextlib
import ctypes as c
import struct
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from symmem import errors
from symmem._c.constants import Code
from symmem._device import layout
from symmem._device.layout import Kind, Row
from symmem._rank.group import Group
from symmem._rank.session import find
from symmem._torch.cuda import aside, own_stream
from symmem._torch.pytorch import pytorch

if TYPE_CHECKING:
    from symmem._api.terms import GroupLike

_U32, _U64 = struct.Struct("=I"), struct.Struct("=Q")


class _Report(NamedTuple):
    """A failed wait, as a rank's kernel wrote it: see `layout.REPORT`."""

    rank: int
    kind: int
    who: int
    word: int
    found: int
    channel: int
    site: int
    row: int


class _Pending(NamedTuple):
    """A signal that this rank has not waited for."""

    source: int
    row: int
    channel: int
    site: int


class CheckedPad:
    """Memory through which kernels of all ranks of a group signal each other, with checks.

    Pass `address` to a kernel that uses `symmem.triton`, or `symmem_device.cuh` in CUDA C++, and
    call `check` after the kernel. The timeout of each wait is that of the group when the pad was
    created. After a failure, the pad stays failed on all ranks: close it, and create another one if
    the program can go on.

    Attributes:
        address: the address of this rank's pad, on its device.
        group: the group.
        sites: the names of call sites in error messages.
    """

    def __init__(self, group: Group, sites: Sequence[str]):
        if group.size > layout.RANKS:
            raise errors.UnsupportedError(
                f"a checked pad is for at most {layout.RANKS} ranks, not {group.size}"
            )
        self.group, self.sites = group, tuple(sites)
        addresses = (c.c_uint64 * group.size)()
        group.library.call(
            "symmem_signal_words_open", group.handle, layout.BYTES // 4, group.size, addresses
        )
        self.address: int = addresses[group.rank]
        self._closed = False
        if group.runtime.device is not None:
            own_stream(group.runtime.device)  # now, because no kernel is waiting yet
        described = group.describe()
        self._timeout_ms: int = described["timeout_ms"]
        self._write_header(list(addresses), described["stop_word"])
        with _lock:
            _open.add(self)

    def _write_header(self, addresses: list[int], stop_word: int) -> None:
        """Write what kernels read. The first word is left out, because peers may write it."""
        number = _next_number(self.group)
        timeout = self._timeout_ms * 1_000_000
        head = struct.pack("=IIIQ", number, self.group.rank, self.group.size, timeout)
        peers = struct.pack(f"={len(addresses)}Q", *addresses)
        self._memory().write(layout.NUMBER, head)
        self._memory().write(layout.PEERS, peers)
        self._memory().write(layout.STOP, _U64.pack(stop_word))

    def close(self) -> None:
        """Free this rank's pad. No kernel of any rank may use it any more.

        Ranks must close pads in the same order, so a pad is not closed when it becomes unreachable.
        After an error, such as a time-out, it can be closed again.
        """
        with _lock:
            _open.discard(self)
        if not self._closed:
            self.group.library.call("symmem_signal_words_close", self.address)
            self._closed = True

    def check(self) -> None:
        """Raise an error if a wait has failed on any rank. On GPUs, wait for the current stream.

        Raises:
            TimeoutError: ranks did not signal in time.
            RankLostError: the process of a rank has ended, so the rank cannot signal.
            SymmemError: the group has failed, which stops its kernels.
            DivergenceError: ranks signalled from different call sites, or too early.
        """
        memory = self._memory()
        if memory.read(layout.FAILED, 4) == bytes(4):
            return
        reports = _reports(memory.read(layout.REPORTS, layout.REPORT * self.group.size))
        with _lock:  # signals left on a failed pad explain no other failure
            _open.discard(self)
        causes = [report for report in reports if report.kind != Kind.PEER]
        first = min(causes, key=self._order, default=None)
        if first is None:
            raise errors.InternalError("a checked pad has failed without a report")
        if first.kind == Kind.TIMEOUT:
            raise self._timed_out(first, reports, memory.all())
        if first.kind == Kind.STOPPED:
            raise self._stopped(first)
        raise self._different(first)

    def explain(self) -> str:
        """Describe signals that this rank has not waited for. A kernel may be waiting meanwhile."""
        return "\n".join(self.signals_from(self.group.ranks)) or "no signals are pending"

    def signals_from(self, ranks: Sequence[int]) -> list[str]:
        """Describe the signals from some ranks of the world that this rank has not waited for."""
        pending = _pending(self._memory(aside=True).all(), self.group)
        return [self._describe(p) for p in pending if self._world(p.source) in ranks]

    def _memory(self, aside: bool = False) -> _Memory:
        if self._closed or self.group.closed:
            raise errors.ClosedError("the checked pad is closed")
        return _Memory(self.address, self.group.runtime.device, aside)

    def _order(self, report: _Report) -> tuple[bool, bool, int]:
        """Put other causes before time-outs and stops, and this rank's report before others."""
        return (
            report.kind in (Kind.TIMEOUT, Kind.STOPPED),
            report.rank != self.group.rank,
            report.rank,
        )

    def _world(self, rank: int) -> int:
        """Return the world rank of a rank of the group."""
        return self.group.ranks[rank]

    def _site(self, number: int) -> str:
        named = number < len(self.sites)
        return f'site {number} ("{self.sites[number]}")' if named else f"site {number}"

    def _at(self, channel: int, site: int) -> str:
        return f"on channel {channel} at {self._site(site)}"

    def _describe(self, pending: _Pending) -> str:
        did = "arrived" if pending.row == Row.ARRIVE else "signalled"
        return f"rank {self._world(pending.source)} has {did} {self._at(*pending[2:])}"

    def _timed_out(
        self, report: _Report, reports: list[_Report], memory: bytes
    ) -> errors.SymmemError:
        missing = [report.who]
        if report.rank == self.group.rank and report.row == Row.ARRIVE:
            missing = _absent(memory, report, self.group.size) or missing
        did = "arrived" if report.row == Row.ARRIVE else "signalled"
        names = _ranks([self._world(r) for r in missing])
        text = (
            f"Timed out: rank {self._world(report.rank)} waited {self._timeout_ms} ms, and {names} "
            f"not {did} {self._at(report.channel, report.site)} of group {self.group.name}"
        )
        failure = self._failure()
        if isinstance(failure, errors.RankLostError):
            return type(failure)(f"{failure}. {text}", code=failure.code, data=failure.data)
        elsewhere = self._elsewhere([self._world(r) for r in missing]) or [
            f"rank {self._world(r.rank)} was {self._at(r.channel, r.site)} instead"
            for r in reports
            if r.rank in missing
        ]
        data = {"timeout": {"missing": [self._world(r) for r in missing]}}
        message = "; ".join([text, *elsewhere])
        return errors.TimeoutError(message, code=Code.TIMEOUT, data=data)

    def _stopped(self, report: _Report) -> errors.SymmemError:
        failure = self._failure() or errors.AbortedError("the group was stopped", code=Code.ABORTED)
        text = (
            f"{failure}. Rank {self._world(report.rank)} was waiting "
            f"{self._at(report.channel, report.site)} of group {self.group.name}"
        )
        return type(failure)(text, code=failure.code, data=failure.data)

    def _failure(self) -> errors.SymmemError | None:
        return self.group.library.group_error(self.group.handle)

    def _elsewhere(self, ranks: list[int]) -> list[str]:
        """Describe where ranks of the world have signalled instead, on all pads of this process."""
        found = [f"{line} instead" for line in self.signals_from(ranks)]
        with _lock:
            others = [pad for pad in _open if pad is not self]
        for pad in others:
            with contextlib.suppress(errors.ClosedError):
                found += [f"{s} of group {pad.group.name} instead" for s in pad.signals_from(ranks)]
        return found[:8]

    def _different(self, report: _Report) -> errors.SymmemError:
        mine, theirs = self._world(report.rank), self._world(report.who)
        if report.kind == Kind.ARGUMENT:
            return errors.InvalidError(
                f"rank {mine} passed an invalid channel, site or peer: channel {report.channel}, "
                f"site {report.site}"
            )
        epoch, _, _, _ = layout.parts(report.word)
        found, _, channel, site = layout.parts(report.found)
        place = self._at(report.channel, report.site)
        theirs_site = self._site(site)
        if report.kind == Kind.OVERWRITTEN or report.found & 0xFFFFFFFF == 0:
            theirs_site = ""
            text = (
                f"Reused too early: rank {theirs} wrote its next values before rank {mine} had "
                f"read the previous ones, {place}"
            )
        elif found != epoch:
            arrives = report.row == Row.ARRIVE
            did, previous = ("arrived", "arrival") if arrives else ("signalled", "signal")
            text = (
                f"Reused too early: rank {theirs} {did} again before rank {mine} had waited for "
                f"the previous {previous}, {place}"
            )
        else:
            text = (
                f"Ranks signal from different call sites: rank {mine} waits {place}, and rank "
                f"{theirs} is {self._at(channel, site)}"
            )
        sides = [
            {"ranks": [mine], "event": f"signal {epoch}", "site": self._site(report.site)},
            {"ranks": [theirs], "event": f"signal {found}", "site": theirs_site},
        ]
        text += f" of group {self.group.name}"
        data = {"divergence": {"variants": sides}}
        return errors.DivergenceError(text, code=Code.DIVERGENCE, data=data)


class _Memory:
    """Reads and writes memory of this process or of its GPU; if `aside`, reads on `own_stream`."""

    def __init__(self, address: int, device: int | None, aside: bool):
        self._address, self._device, self._aside = address, device, aside

    def _view(self, at: int, size: int) -> Any:
        torch = pytorch().module
        described = _Described(self._address + at, size)
        return torch.as_tensor(described, device=torch.device("cuda", self._device))

    def all(self) -> bytes:
        return self.read(0, layout.BYTES)

    def read(self, at: int, size: int) -> bytes:
        if self._device is None:
            return c.string_at(self._address + at, size)
        with aside(self._device) if self._aside else contextlib.nullcontext():
            return bytes(self._view(at, size).cpu().numpy())

    def write(self, at: int, data: bytes) -> None:
        if self._device is None:
            c.memmove(self._address + at, data, len(data))
            return
        torch = pytorch().module
        self._view(at, len(data)).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))


class _Described:
    """Bytes of a GPU's memory, for `torch.as_tensor`."""

    def __init__(self, address: int, size: int):
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


_lock = threading.Lock()
_open: weakref.WeakSet[CheckedPad] = weakref.WeakSet()
_numbers: weakref.WeakKeyDictionary[Group, int] = weakref.WeakKeyDictionary()


def _next_number(group: Group) -> int:
    """Return the number of the group's next pad, from 1 to 255."""
    with _lock:
        number = _numbers.get(group, 0) % 255 + 1
        _numbers[group] = number
    return number


def _reports(data: bytes) -> list[_Report]:
    """Return the reports of all ranks that have failed."""
    found = []
    for rank in range(len(data) // layout.REPORT):
        kind, who, word, seen, channel, site, row = struct.unpack_from(
            "=IIQQIII", data, rank * layout.REPORT
        )
        if kind:
            found.append(_Report(rank, kind, who, word, seen, channel, site, row))
    return found


def _absent(memory: bytes, report: _Report, size: int) -> list[int]:
    """Return the ranks that have not arrived as the failed wait of a report expected."""
    epoch = report.word >> 32
    row = layout.SLOTS + (3 * report.channel + epoch % 2) * layout.ROW
    words = (_U64.unpack_from(memory, row + 8 * rank)[0] for rank in range(size))
    return [rank for rank, word in enumerate(words) if word != report.word]


def _pending(memory: bytes, group: Group) -> list[_Pending]:
    """Return all signals that this rank has not waited for."""
    found = []
    for channel in range(layout.CHANNELS):
        base = layout.SLOTS + 3 * channel * layout.ROW
        if not any(memory[base : base + 3 * layout.ROW]):
            continue
        waits = _U32.unpack_from(memory, layout.ARRIVALS + 8 * channel + 4)[0]
        for rank in range(group.size):
            at = layout.SIGNALS + 8 * (channel * layout.RANKS + rank) + 4
            taken = _U32.unpack_from(memory, at)[0]
            for row, seen in ((0, waits), (1, waits), (Row.SIGNAL, taken)):
                word = _U64.unpack_from(memory, base + row * layout.ROW + 8 * rank)[0]
                epoch, _, _, site = layout.parts(word)
                if word & 0xFFFFFFFF and 0 < (epoch - seen) % (1 << 32) < 1 << 31:
                    found.append(_Pending(rank, row & Row.SIGNAL, channel, site))
    return found


def _ranks(ranks: list[int]) -> str:
    """Return "rank 3 has", or "ranks 1, 2 have"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} has"
    return f"ranks {', '.join(map(str, ranks))} have"


def checked_pad(group: GroupLike = None, *, sites: Sequence[str] = ()) -> CheckedPad:
    """Create a checked pad, through which kernels of all ranks signal each other. Collective.

    Args:
        group: any argument that `symmem.group` accepts; the default is the world.
        sites: names for call sites in error messages, indexed by the number that kernels pass.

    Raises:
        UnsupportedError: the ranks cannot map each other's memory.
    """
    return CheckedPad(find(group), sites)
