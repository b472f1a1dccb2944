"""Starts processes for tests. A process that exceeds its deadline reports where it was."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from fork_server import Child, Server

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
SOURCE = HERE.parent / "src"

LAST_WORDS = 10.0
"""How long a process may take to write its stacks after its deadline, in seconds."""


@dataclass(frozen=True)
class Result:
    """The exit code and output of a process."""

    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"exit {self.code}\n{self.out[-2000:]}\n{self.err[:4000]}"


class _Reader:
    """Reads a pipe until its end, so that writers never block."""

    def __init__(self) -> None:
        self._text = b""
        self._grown = threading.Condition()
        reader, writer = os.pipe()
        self._pipe, self.writer = os.fdopen(reader, "rb"), os.fdopen(writer, "wb")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._pipe as pipe:
            while piece := os.read(pipe.fileno(), 1 << 16):
                with self._grown:
                    self._text += piece
                    self._grown.notify_all()
        with self._grown:
            self._grown.notify_all()

    def text(self, patience: float = 0) -> str:
        """Return the text read so far, after waiting up to `patience` seconds for the end."""
        self._thread.join(patience)
        with self._grown:
            return self._text.decode("utf-8", "replace")

    def comes(self, words: bytes, times: int, limit: float) -> bool:
        with self._grown:
            return self._grown.wait_for(lambda: self._text.count(words) >= times, limit)


class Process:
    """A program in its own session, which is killed at the end of the `with` statement."""

    def __init__(
        self,
        command: Sequence[str],
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        server: Server | None = None,
    ):
        # With this, a Python process that gets SIGABRT writes the stacks of its threads.
        variables = {**(os.environ if env is None else env), "PYTHONFAULTHANDLER": "1"}
        self.command = command
        self._out, self._err = _Reader(), _Reader()
        self._child: Child | subprocess.Popen[bytes]
        with self._out.writer as out, self._err.writer as err:
            if server is not None:
                self._child = server.start(command[1:], variables, out.fileno(), err.fileno())
                return
            self._child = subprocess.Popen(
                command,
                env=variables,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._child:  # Waits for the process.
            self._signal_all(signal.SIGKILL)

    def send(self, number: int) -> None:
        """Send a signal only to the program, not to its children."""
        self._child.send_signal(number)

    def await_words(self, words: str, times: int = 1, limit: float = 60) -> None:
        """Wait until the standard output contains words, however it is split into writes."""
        if not self._out.comes(words.encode(), times, limit):
            raise AssertionError(f"{words!r} did not come {times} times: {self.end(0)}")

    def end(self, limit: float, left: float = 5) -> Result:
        """Wait for the program to exit. After the limit, it reports where it was and is killed.

        Args:
            limit: how long it may take, in seconds.
            left: how long what it has started may hold its output open.
        """
        late = ""
        try:
            code = self._child.wait(max(0.0, limit))
        except subprocess.TimeoutExpired:
            late = f"\nended by the test: no end within {limit:.1f} s"
            self._signal_all(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(LAST_WORDS)
            self._signal_all(signal.SIGKILL)
            code = self._child.wait()
        out, err = self._out.text(left), self._err.text(left)
        return Result(code, without_gloo(out), err + late)

    def _signal_all(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, number)


def without_gloo(out: str) -> str:
    """Remove what Gloo of PyTorch 2.8 writes to the standard output of every program."""
    return "".join(x for x in out.splitlines(keepends=True) if not x.startswith("[Gloo] "))


def run(
    *command: str, limit: float = 100, env: dict[str, str] | None = None, cwd: Path | None = None
) -> Result:
    """Run a program to completion, for at most `limit` seconds."""
    with Process(command, env, cwd) as process:
        return process.end(limit)


def _variables(rank: int, size: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun would set."""
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONPATH": os.pathsep.join([str(SOURCE), str(PROGRAMS)]),
    }


@functools.cache
def server(rank: int) -> Server:
    """Return the server that forks this rank of every program."""
    made = Server({**_variables(rank, 1, 0), "PYTHONFAULTHANDLER": "1"})
    atexit.register(made.close)
    return made


COMPILER = ("torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.fsdp")
"""Modules that programs import when they compile, or parallelize models."""


def modules_of(program: str | Path, env: dict[str, str]) -> tuple[str, ...]:
    """Return the slow imports of a program, or nothing if it cannot be forked after them."""
    text = (PROGRAMS / program).read_text()
    given = ("SYMMEM_", "VLLM_", "SGLANG_", "PYTHONPATH")
    if not re.search(r"^import torch$", text, re.M) or not all(n.startswith(given) for n in env):
        return ()
    compiles = re.search(r"torch\.compile\(|fully_shard|DistributedDataParallel", text)
    return ("torch", *COMPILER) if compiles else ("torch",)


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """Reserve a port, on which programs can listen, but which no other test gets.

    A socket is bound to it that does not listen. A listener shares it, as it sets SO_REUSEADDR.
    """
    from symmem._rank.rendezvous import free_port

    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("", port := free_port("0.0.0.0")))
        yield port


@contextlib.contextmanager
def ranks(
    program: str | Path,
    size: int,
    *arguments: str,
    env: dict[str, str] | None = None,
    fresh: bool = False,
) -> Iterator[list[Process]]:
    """Start a program in tests/programs on the given number of ranks.

    Those that import PyTorch are forked from processes that have done that, unless they are to have
    a fresh interpreter.
    """
    env = env or {}
    modules = () if fresh else modules_of(program, env)
    servers = [server(rank) if modules else None for rank in range(size)]
    loading = [each.load(modules) for each in servers if each]
    for wait in loading:
        wait()  # for all, before any program runs, so that no rank waits for another one's imports
    with contextlib.ExitStack() as all_of_them:
        port = all_of_them.enter_context(held_port())
        started = []
        for rank in range(size):
            variables = {**_variables(rank, size, port), **env}
            command = [sys.executable, str(PROGRAMS / program), *arguments]
            process = Process(command, variables, server=servers[rank])
            started.append(all_of_them.enter_context(process))
        yield started


def ends(started: Sequence[Process], limit: float) -> list[Result]:
    """Wait until all processes exit, for at most `limit` seconds in total."""
    deadline = time.monotonic() + limit
    return [each.end(deadline - time.monotonic()) for each in started]


def run_ranks(
    program: str | Path,
    size: int,
    *arguments: str,
    timeout: float = 100,
    env: dict[str, str] | None = None,
    fresh: bool = False,
) -> list[Result]:
    """Run a program in tests/programs to completion on the given number of ranks."""
    with ranks(program, size, *arguments, env=env, fresh=fresh) as started:
        return ends(started, timeout)
