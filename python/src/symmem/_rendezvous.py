"""How the ranks of an initialised torch.distributed tell symmem where they are.

symmem's ranks find each other through a store that rank 0 serves. Where torch.distributed is
initialised its own store carries the address and a token, so nothing has to be configured.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from symmem import _launch, errors

_rounds = itertools.count()


def machine() -> str:
    """Name what ranks must share to meet in memory: the boot of a machine, and its network."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    text = boot.read_text().strip() if boot.exists() else socket.gethostname()
    try:
        return f"{text}/{os.readlink('/proc/self/ns/net')}"
    except OSError:
        return text


def reachable() -> str:
    """Name this machine as others reach it: by the address that it has towards MASTER_ADDR.

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
    port = _launch.free_port("::" if ":" in host else "0.0.0.0")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


SLICE = 0.5
"""How many seconds a wait for the store goes on before Python sees to its signals."""


class Meeting:
    """The ranks' words to each other in a store of torch.distributed, with a deadline for all."""

    def __init__(self, store: Any, size: int, timeout: float):
        self._store = store
        self._size = size
        self._begin = time.monotonic()
        self._timeout = timeout
        self._prefix = f"symmem/{next(_rounds)}"

    def say(self, key: str, value: str) -> None:
        """Write a value that the other ranks read."""
        self._store.set(f"{self._prefix}/{key}", value)

    def hear(self, key: str, speaker: int, asked: str) -> str:
        """Wait for what a rank says.

        Args:
            key: what it is about.
            speaker: the rank.
            asked: the key of what each rank has said by then, with its number between braces.
        """
        name = f"{self._prefix}/{key}"
        while not self._comes(name):
            if time.monotonic() - self._begin >= self._timeout:
                raise self._absence(speaker, asked)
        said: str = self._store.get(name).decode()
        return said

    def _comes(self, name: str) -> bool:
        left = self._timeout - (time.monotonic() - self._begin)
        try:
            self._store.wait([name], timedelta(seconds=max(0.001, min(SLICE, left))))
        except Exception as e:
            # Without PyTorch there is no class to ask for, and a store may be of another kind.
            if type(e).__name__ != "DistStoreError" and not isinstance(e, TimeoutError):
                raise errors.SymmemError(
                    f"the store of torch.distributed, by which symmem's ranks meet: {e}"
                ) from e
            return False
        return True

    def _absence(self, speaker: int, asked: str) -> errors.AbsentError:
        """Name all ranks that have not come."""
        names = [f"{self._prefix}/{asked.format(rank)}" for rank in range(self._size)]
        missing = [r for r, name in enumerate(names) if not self._store.check([name])] or [speaker]
        waited = time.monotonic() - self._begin
        words = f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))}"
        return errors.AbsentError(
            f"opening symmem: waited {waited:.1f} s for {words} of {self._size}, which did not "
            "call symmem.init; find out why, or raise its timeout",
            data={
                "timeout": {
                    "doing": "opening symmem",
                    "waited_ms": round(waited * 1000),
                    "missing": missing,
                    "activity": {},
                }
            },
        )


def options(store: Any, rank: int, size: int, timeout: float) -> dict[str, Any]:
    """Find this rank's options for the library. Collective over the ranks of the store.

    Raises:
        AbsentError: ranks did not come within so many seconds; it names them.
    """
    meeting = Meeting(store, size, timeout)
    meeting.say(f"machine/{rank}", machine())
    world = [meeting.hear(f"machine/{r}", r, "machine/{}") for r in range(size)]
    if rank == 0:
        where = {"store": address(world), "token": secrets.token_hex(16)}
        meeting.say("meeting", json.dumps(where))
    found: dict[str, Any] = json.loads(meeting.hear("meeting", 0, "machine/{}"))
    mine = [r for r in range(size) if world[r] == world[rank]]
    return {
        **found,
        "rank": rank,
        "size": size,
        "local_rank": mine.index(rank),
        "local_size": len(mine),
    }
