"""The rendezvous of ranks that torch.distributed has started.

symmem's ranks find each other through a store that rank 0 serves. Where torch.distributed is
initialised its own store carries the address and a token, so nothing has to be configured.
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
    """Return an identifier of this machine: its boot and its network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    text = boot.read_text().strip() if boot.exists() else socket.gethostname()
    try:
        return f"{text}/{os.readlink('/proc/self/ns/net')}"
    except OSError:
        return text


def reachable() -> str:
    """Return the address of this machine on the route to MASTER_ADDR.

    Rank 0 of a process group need not be on the machine of MASTER_ADDR.
    """
    master = os.environ.get("MASTER_ADDR", "")
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as s:
            s.connect(target)  # A datagram socket sends nothing by that.
            found: str = s.getsockname()[0]
            return found
    except OSError:
        return socket.gethostname()


def address(world: list[str]) -> str:
    """Choose where rank 0 serves the store: a socket of the machine, or a port for several."""
    if len(set(world)) == 1:
        return f"unix:@symmem-{secrets.token_hex(12)}"
    host = reachable()
    port = free_port("::" if ":" in host else "0.0.0.0")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def free_port(host: str = "127.0.0.1") -> int:
    """Find a port on which nothing listens now.

    Ports from 32768 are left out, since the system gives them to connections of other programs
    before rank 0 listens, and those from 30000, which Kubernetes uses for its nodes. The program's
    own random numbers are left alone.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in random.SystemRandom().sample(range(20000, 30000), 100):
        with socket.socket(family) as s, contextlib.suppress(OSError):
            s.bind((host, port))
            return port
    raise OSError(f"none of 100 ports of {host} from 20000 to 29999 is free")


FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.1
"""Bounds, in seconds, of the pause between two polls for other ranks."""

WARN_AFTER = 30.0
"""How many seconds a rank waits before it warns of late ranks, without "warn_after_ms"."""

GRACE = 1.0
"""How many seconds a call of the store may take beyond the deadline."""


Question = tuple[Callable[..., Any], tuple[Any, ...]]
"""A method of the store, and its arguments."""


class Meeting:
    """Exchanges values between ranks through a store of torch.distributed.

    It polls with `check`, which all stores of PyTorch have: their waits end in different errors at
    a timeout, and that of a TCPStore prints warnings. A thread asks the store, from `with` to its
    end: no signal interrupts a store whose server hangs, and most methods have no timeout.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: float, warn_after: float):
        self._store = store
        self._size = size
        self._begin = time.monotonic()
        self._timeout = timeout
        self._warn_after = warn_after
        self._warn_at = warn_after if warn_after > 0 else timeout + 1
        self._questions: queue.SimpleQueue[Question | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        self._rank = rank

    def __enter__(self) -> Meeting:
        threading.Thread(target=self._work, name="symmem-store", daemon=True).start()
        # A count of the process would differ where one of the ranks has met others before.
        self._prefix = f"symmem/{self._ask(self._store.add, f'symmem/met/{self._rank}', 1)}"
        return self

    def __exit__(self, *_: object) -> None:
        self._questions.put(None)

    def _work(self) -> None:
        """Ask the store until the end."""
        while (asked := self._questions.get()) is not None:
            question, arguments = asked
            try:
                self._answers.put((question(*arguments), None))
            except Exception as e:
                self._answers.put((None, e))

    def publish(self, key: str, value: str) -> None:
        """Write a value that the other ranks read."""
        self._ask(self._store.set, f"{self._prefix}/{key}", value)

    def await_values(self, *keys: str) -> list[str]:
        """Wait until all keys have values, and return these.

        Raises:
            AbsentError: not all came before the deadline; it names the ranks that are not here.
        """
        names = [f"{self._prefix}/{key}" for key in keys]
        pause = FIRST_PAUSE
        while not self._ask(self._store.check, names):
            if (left := self._left()) <= 0:
                raise self._absence()
            if self._timeout - left >= self._warn_at:
                self._warn()
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)
        return [str(self._ask(self._store.get, name).decode()) for name in names]

    def _left(self) -> float:
        return self._timeout - (time.monotonic() - self._begin)

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the store, at most until the deadline."""
        self._questions.put((question, arguments))
        limit = max(GRACE, self._left())
        try:
            found, error = self._answers.get(timeout=limit)
        except queue.Empty:
            raise errors.TimeoutError(
                f"opening symmem: the store of torch.distributed did not answer within "
                f"{limit:.1f} s; is the process that serves it, as a rule rank 0, stopped?"
            ) from None
        if error is not None:
            raise errors.SymmemError(
                f"the store of torch.distributed, through which symmem's ranks meet: {error}"
            ) from error
        return found

    def _missing(self) -> tuple[list[int], str]:
        """List the ranks that have not come, also in words."""
        missing = [
            rank
            for rank in range(self._size)
            if not self._ask(self._store.check, [f"{self._prefix}/{machine_key(rank)}"])
        ] or [0]  # All have come, but rank 0 has not published the address.
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

    def _absence(self) -> errors.AbsentError:
        """Make the error that names all ranks that have not come."""
        missing, words = self._missing()
        waited = time.monotonic() - self._begin
        return errors.AbsentError(
            f"opening symmem: waited {waited:.1f} s for {words}, which did not "
            "open it; find out why, or raise the timeout: that of the process group, or "
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
    """Return the key under which a rank publishes its machine, before anything else."""
    return f"machine/{rank}"


def options(
    store: Any, rank: int, size: int, timeout: float, warn_after: float = WARN_AFTER
) -> dict[str, Any]:
    """Find this rank's options for the library. Collective over the ranks of the store.

    Args:
        store: a store of torch.distributed.
        rank: this rank.
        size: how many ranks there are.
        timeout: how many seconds to wait for others.
        warn_after: how many seconds to wait before ranks are warned of; never if negative.

    Raises:
        AbsentError: ranks did not arrive within the timeout; it names them.
    """
    if store is None:
        raise errors.UnsupportedError(
            "the process group has no store through which symmem's ranks could meet (its backend "
            "needs none, such as mpi): call symmem.init before init_process_group, or give "
            "symmem.init a process group of gloo or nccl"
        )
    with Meeting(store, rank, size, timeout, warn_after) as meeting:
        return _meet(meeting, rank, size)


def _meet(meeting: Meeting, rank: int, size: int) -> dict[str, Any]:
    """Find this rank's options at a meeting."""
    here = machine()
    meeting.publish(machine_key(rank), here)
    world = meeting.await_values(*[machine_key(r) for r in range(size)])
    if world[rank] != here:
        raise errors.UnsupportedError(
            "the store of torch.distributed does not return what is put into it: is the process "
            'group one of PyTorch\'s "fake" backend?'
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
