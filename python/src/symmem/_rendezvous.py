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
from pathlib import Path
from typing import Any

from symmem import _launch

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


def options(store: Any, rank: int, size: int) -> dict[str, Any]:
    """Find this rank's options for the library. Collective over the ranks of the store."""
    prefix = f"symmem/{next(_rounds)}"
    store.set(f"{prefix}/machine/{rank}", machine())
    world = [store.get(f"{prefix}/machine/{r}").decode() for r in range(size)]
    if rank == 0:
        meeting = {"store": address(world), "token": secrets.token_hex(16)}
        store.set(f"{prefix}/meeting", json.dumps(meeting))
    found: dict[str, Any] = json.loads(store.get(f"{prefix}/meeting").decode())
    mine = [r for r in range(size) if world[r] == world[rank]]
    return {
        **found,
        "rank": rank,
        "size": size,
        "local_rank": mine.index(rank),
        "local_size": len(mine),
    }
