"""The rendezvous of symmem's ranks through the store of torch.distributed.

symmem's ranks find each other through a store that rank 0 serves. If torch.distributed is
initialized, rank 0 publishes the address of this store and a token in the store of
torch.distributed, so that users need not configure them.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from symmem import errors
from symmem._c.sites import warn


def machine() -> str:
    """Return an identifier of this machine, made of its boot ID and its network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    text = boot.read_text().strip() if boot.exists() else socket.gethostname()
    try:
        return f"{text}/{os.readlink('/proc/self/ns/net')}"
    except OSError:
        return text


def reachable() -> str:
    """Return the address from which this machine reaches MASTER_ADDR.

    MASTER_ADDR itself may be another machine, because rank 0 of a process group need not be global
    rank 0.
    """
    master = os.environ.get("MASTER_ADDR", "")
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as s:
            s.connect(target)  # Connecting a datagram socket sends nothing.
            found: str = s.getsockname()[0]
            return found
    except OSError:
        return socket.gethostname()


def address(world: list[str]) -> str:
    """Return an address for rank 0's store: a Unix socket, or a port if there are more machines.

    Args:
        world: the machine of each rank.
    """
    if len(set(world)) == 1:
        return f"unix:@symmem-{secrets.token_hex(12)}"
    host = reachable()
    port = free_port("::" if ":" in host else "0.0.0.0")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port on which no program listens.

    Ports from 32768 up are excluded, because the system could assign one to an outgoing connection
    before rank 0 listens, and so are ports from 30000 up, which Kubernetes uses as node ports.
    SystemRandom leaves the state of the program's random numbers unchanged.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in random.SystemRandom().sample(range(20000, 30000), 100):
        with socket.socket(family) as s, contextlib.suppress(OSError):
            s.bind((host, port))
            return port
    raise OSError(f"tried 100 ports of {host} from 20000 to 29999, and none is free")


FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.1
"""The shortest and longest pause between two polls for other ranks, in seconds."""

WARN_AFTER = 30.0
"""The default of "warn_after_ms", in seconds: how long a rank waits before it names late ranks."""

GRACE = 1.0
"""The seconds that a call to the store may take even if the deadline is closer or has passed."""


StoreCall = tuple[Callable[..., Any], tuple[Any, ...]]
"""A method of the store, and its arguments."""


class Meeting:
    """Exchanges values between ranks through a store of torch.distributed.

    It polls with `check`, because the `wait` methods of PyTorch's stores raise different errors
    after a timeout, and that of TCPStore also prints warnings. A thread makes the calls to the
    store, because signals do not interrupt a call whose server hangs, and most methods have no
    timeout. The thread runs as long as the `with` statement of the meeting.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: float, warn_after: float):
        self._store = store
        self._size = size
        self._begin = time.monotonic()
        self._timeout = timeout
        self._warn_after = warn_after
        self._warn_at = warn_after if warn_after > 0 else timeout + 1
        self._calls: queue.SimpleQueue[StoreCall | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        self._rank = rank

    def __enter__(self) -> Meeting:
        threading.Thread(target=self._work, name="symmem-store", daemon=True).start()
        # The store counts the meetings. A counter in the process would differ between ranks if one
        # of them had met other ranks before.
        self._prefix = f"symmem/{self._call(self._store.add, f'symmem/met/{self._rank}', 1)}"
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.put(None)

    def _work(self) -> None:
        """Make the calls to the store, on the thread."""
        while (call := self._calls.get()) is not None:
            method, arguments = call
            try:
                self._results.put((method(*arguments), None))
            except Exception as e:
                self._results.put((None, e))

    def publish(self, key: str, value: str) -> None:
        """Write a value for the other ranks."""
        self._call(self._store.set, f"{self._prefix}/{key}", value)

    def await_values(self, *keys: str) -> list[str]:
        """Wait until all keys have values, and return the values.

        Raises:
            AbsentError: a key has no value by the deadline. The error names the missing ranks.
        """
        names = [f"{self._prefix}/{key}" for key in keys]
        pause = FIRST_PAUSE
        while not self._call(self._store.check, names):
            if (left := self._left()) <= 0:
                raise self._absent_error()
            if self._timeout - left >= self._warn_at:
                self._warn()
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)
        return [str(self._call(self._store.get, name).decode()) for name in names]

    def _left(self) -> float:
        return self._timeout - (time.monotonic() - self._begin)

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the store on the thread, and wait for its result until the deadline."""
        self._calls.put((method, arguments))
        limit = max(GRACE, self._left())
        try:
            found, error = self._results.get(timeout=limit)
        except queue.Empty:
            raise errors.TimeoutError(
                f"opening symmem: the store of torch.distributed did not answer within "
                f"{limit:.1f} s; check whether the process that serves it, usually rank 0, is "
                "stopped"
            ) from None
        if error is not None:
            raise errors.SymmemError(
                f"opening symmem: the store of torch.distributed failed: {error}"
            ) from error
        return found

    def _missing(self) -> tuple[list[int], str]:
        """Return the ranks that have not arrived, as a list and in words."""
        missing = [
            rank
            for rank in range(self._size)
            if not self._call(self._store.check, [f"{self._prefix}/{machine_key(rank)}"])
        ] or [0]  # All ranks have arrived, but rank 0 has not published the address.
        noun = "rank" if len(missing) == 1 else "ranks"
        return missing, f"{noun} {', '.join(map(str, missing))} of {self._size}"

    def _warn(self) -> None:
        missing, words = self._missing()
        waited = self._timeout - self._left()
        self._warn_at = waited + 2 * self._warn_after
        warning = errors.LateWarning(
            f"opening symmem: still waiting for {words} after {waited:.1f} s",
            data={
                "group": "",
                "doing": "opening symmem",
                "waited_ms": round(waited * 1000),
                "ranks": missing,
                "activity": {},
            },
        )
        warn(warning, again=True)

    def _absent_error(self) -> errors.AbsentError:
        """Return an error that names the ranks that have not arrived."""
        missing, words = self._missing()
        waited = time.monotonic() - self._begin
        return errors.AbsentError(
            f"opening symmem: waited {waited:.1f} s for {words}, which did not "
            "open it; find out why, or increase the timeout, either of the process group or with "
            "symmem.init(timeout=...)",
            data={
                "timeout": {
                    "doing": "opening symmem",
                    "waited_ms": round(waited * 1000),
                    "missing": missing,
                    "activity": {},
                }
            },
        )


def machine_key(rank: int) -> str:
    """Return the key under which a rank publishes its machine when it arrives."""
    return f"machine/{rank}"


def options(
    store: Any, rank: int, size: int, timeout: float, warn_after: float = WARN_AFTER
) -> dict[str, Any]:
    """Return this rank's options for the library. Collective over the ranks of the store.

    Args:
        store: a store of torch.distributed.
        rank: this rank.
        size: the number of ranks.
        timeout: the maximum wait for other ranks, in seconds.
        warn_after: the wait before the first warning about late ranks, in seconds; a negative
            value turns the warnings off.

    Raises:
        AbsentError: some ranks, which the error names, did not arrive within the timeout.
    """
    if store is None:
        raise errors.UnsupportedError(
            "symmem's ranks need a store to find each other, but the process group has none, "
            "because its backend (such as mpi) does not use one; call symmem.init before "
            "init_process_group, or pass symmem.init a process group with backend gloo or nccl"
        )
    with Meeting(store, rank, size, timeout, warn_after) as meeting:
        return _meet(meeting, rank, size)


def _meet(meeting: Meeting, rank: int, size: int) -> dict[str, Any]:
    here = machine()
    meeting.publish(machine_key(rank), here)
    world = meeting.await_values(*[machine_key(r) for r in range(size)])
    if world[rank] != here:
        raise errors.UnsupportedError(
            "the store of torch.distributed does not return the values written to it; is the "
            'backend of the process group PyTorch\'s "fake"?'
        )
    if rank == 0:
        where = {"store": address(world), "token": secrets.token_hex(16)}
        meeting.publish("meeting", json.dumps(where))
    found: dict[str, Any] = json.loads(meeting.await_values("meeting")[0])
    mine = [r for r in range(size) if world[r] == world[rank]]
    return {
        **found,
        "rank": rank,
        "size": size,
        "local_rank": mine.index(rank),
        "local_size": len(mine),
    }
