"""Runs a program on all GPUs of this machine: launch.py RANKS SECONDS PROGRAM [ARGUMENT]...

The ranks have the variables that torchrun sets. They are killed after SECONDS, or a few seconds
after one has failed. The exit code is the largest exit code of the ranks, or 124 after SECONDS. If
ranks exit with errors on purpose, the program's last line declares the codes, as in "EXPECT 0 3".
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO

from symmem._rank.rendezvous import free_port

PRCTL = ctypes.CDLL(None).prctl

GRACE = 12.0
"""How long the other ranks may continue after one has failed, in seconds."""


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun would set."""
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent exits, even if the parent is killed."""
    PRCTL(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def ended(children: list[subprocess.Popen[bytes]], seconds: float) -> bool:
    """Wait for all ranks, and return whether they exited in time."""
    deadline = time.monotonic() + seconds
    while any(child.poll() is None for child in children):
        if time.monotonic() > deadline:
            return False
        if any(child.returncode for child in children):
            deadline = min(deadline, time.monotonic() + GRACE)
            children = [c for c in children if c.returncode in (None, 0)]
        time.sleep(0.05)
    return True


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill a rank and the processes that it has started."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def show(rank: int, code: int, out: IO[bytes]) -> str:
    """Print the output of rank 0, and the end of the output of other ranks that failed."""
    out.seek(0)
    text = out.read().decode(errors="replace")
    if rank == 0:
        print(text, end="", flush=True)
    elif code:
        print(f"--- rank {rank}, exit code {code}", text[-3000:], sep="\n", flush=True)
    return text


def expected(text: str, ranks: int) -> list[int]:
    """Return the exit codes that a program declares."""
    lines = [line.split() for line in text.splitlines() if line.startswith("EXPECT ")]
    codes = [int(c) for c in lines[-1][1:]] if lines else []
    return codes if len(codes) == ranks else [0] * ranks


def main() -> int:
    """Run the program."""
    ranks, seconds = int(sys.argv[1]), float(sys.argv[2])
    command = [sys.executable, "-u", *sys.argv[3:]]
    port = free_port()
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(ranks)]
        return watch(command, ranks, seconds, port, outputs)


def watch(
    command: list[str], ranks: int, seconds: float, port: int, outputs: list[IO[bytes]]
) -> int:
    """Start the ranks, wait for them and check their exit codes."""
    children = [
        subprocess.Popen(
            command,
            env=environment(rank, ranks, port),
            stdout=outputs[rank],
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - this program has no threads
        )
        for rank in range(ranks)
    ]
    try:
        in_time = ended(list(children), seconds)
    finally:
        for child in children:
            end(child)
    codes = [child.returncode for child in children]
    texts = [show(r, codes[r], outputs[r]) for r in range(ranks)]
    if not in_time:
        print(f"FAIL {' '.join(command[2:])}: no end within {seconds:.0f} s, codes {codes}")
        return 124
    if codes == expected(texts[0], ranks):
        return 0
    print(f"FAIL {' '.join(command[2:])}: exit codes {codes}")
    return max((c if c > 0 else 2) for c in codes if c) if any(codes) else 2


if __name__ == "__main__":
    sys.exit(main())
