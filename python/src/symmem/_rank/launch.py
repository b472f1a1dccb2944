"""Starts ranks on this machine, for the programs of the package."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TextIO

CANNOT_RUN = 2
STARTED = "SYMMEM_STARTED"
"""The variable by which a process knows that it was started as a rank by this module."""


def launched() -> bool:
    """Report whether a launcher has started this process as a rank."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def take_stdout() -> TextIO:
    """Give standard output to the caller alone, for what a program reports.

    NCCL's log (NCCL_DEBUG) and PyTorch 2.8's Gloo are written there, too; what anything else in
    this process writes goes to standard error from now on.
    """
    sys.stdout.flush()
    taken = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return taken


def free_port(host: str = "127.0.0.1") -> int:
    """Find a port that nobody listens on now.

    It is none of those that the system gives to connections (32768 and up, unless it was changed),
    since another program may get such a one before rank 0 listens, and none of Kubernetes' node
    ports (30000 and up). The program's own random numbers are left alone.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in random.SystemRandom().sample(range(20000, 30000), 100):
        with socket.socket(family) as s, contextlib.suppress(OSError):
            s.bind((host, port))
            return port
    raise OSError(f"none of 100 ports of {host} from 20000 to 29999 is free")


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Write the variables that torchrun would set."""
    return {
        **os.environ,
        STARTED: "1",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def start(module: str, arguments: Sequence[str], ranks: int) -> int:
    """Run a module of the package on so many ranks, and return the exit code of them together.

    That is the largest of theirs, where a rank that a signal has ended counts as one that could not
    run; and 128 + n where signal n was sent to this process.
    """
    port = free_port()
    command = [sys.executable, "-m", module, *arguments]
    children = [subprocess.Popen(command, env=environment(r, ranks, port)) for r in range(ranks)]
    passed: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        passed.append(number)
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    before = {n: signal.signal(n, forward) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        codes = [child.wait() for child in children]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for child in children:
            if child.poll() is None:
                child.kill()
    if passed:
        return 128 + passed[0]
    return max(c if 0 <= c <= CANNOT_RUN else CANNOT_RUN for c in codes)
