"""Processes that tests start. Each has a deadline, and says where it was when that came."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
SOURCE = HERE.parent / "src"

LAST_WORDS = 10.0
"""How long a process that is over its deadline may take to write the stacks of its threads."""


@dataclass(frozen=True)
class Result:
    """What a process left behind."""

    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"exit {self.code}\n{self.out[-2000:]}\n{self.err[:4000]}"


class _Reader:
    """Reads an output until its end, so that no writer waits for room in a pipe."""

    def __init__(self, pipe: IO[bytes]):
        self._text = b""
        self._grown = threading.Condition()
        self._pipe = pipe
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
        """Return what has come, with the end of the output if that comes soon enough."""
        self._thread.join(patience)
        with self._grown:
            return self._text.decode("utf-8", "replace")

    def comes(self, words: bytes, times: int, limit: float) -> bool:
        with self._grown:
            return self._grown.wait_for(lambda: self._text.count(words) >= times, limit)


class Process:
    """A program in a session of its own, all of which ends with the `with` statement."""

    def __init__(
        self,
        command: Sequence[str],
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
    ):
        # By this a process of Python that gets SIGABRT writes the stacks of its threads.
        variables = {**(os.environ if env is None else env), "PYTHONFAULTHANDLER": "1"}
        self.command = command
        self._popen = subprocess.Popen(
            command,
            env=variables,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        self._out, self._err = _Reader(self._popen.stdout), _Reader(self._popen.stderr)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._signal_all(signal.SIGKILL)
        self._popen.wait()

    def send(self, number: int) -> None:
        """Send a signal to the program alone, not to what it has started."""
        self._popen.send_signal(number)

    def await_words(self, words: str, times: int = 1, limit: float = 60) -> None:
        """Wait until words stand in the standard output, however that is divided into lines."""
        if not self._out.comes(words.encode(), times, limit):
            raise AssertionError(f"{words!r} did not come {times} times: {self.end(0)}")

    def end(self, limit: float, left: float = 5) -> Result:
        """Wait for the end; a program that is over its limit is ended, and says where it was.

        Args:
            limit: how long it may take, in seconds.
            left: how long what it has started may hold its output open.
        """
        late = ""
        try:
            code = self._popen.wait(max(0.0, limit))
        except subprocess.TimeoutExpired:
            late = f"\nended by the test: no end within {limit:.1f} s"
            self._signal_all(signal.SIGABRT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(LAST_WORDS)
            self._signal_all(signal.SIGKILL)
            code = self._popen.wait()
        out, err = self._out.text(left), self._err.text(left)
        return Result(code, without_gloo(out), err + late)

    def _signal_all(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, number)


def without_gloo(out: str) -> str:
    """Leave out what PyTorch 2.8's Gloo writes to the standard output of every program."""
    return "".join(x for x in out.splitlines(keepends=True) if not x.startswith("[Gloo] "))


def run(
    *command: str, limit: float = 100, env: dict[str, str] | None = None, cwd: Path | None = None
) -> Result:
    """Run a program to its end, at most `limit` seconds."""
    with Process(command, env, cwd) as process:
        return process.end(limit)


@contextlib.contextmanager
def ranks(
    program: str | Path, size: int, *arguments: str, env: dict[str, str] | None = None
) -> Iterator[list[Process]]:
    """Start a program of tests/programs on so many ranks."""
    from symmem import _launch

    port = _launch.free_port()
    with contextlib.ExitStack() as all_of_them:
        started = []
        for rank in range(size):
            variables = _launch.environment(rank, size, port)
            variables |= {
                "PYTHONPATH": os.pathsep.join([str(SOURCE), str(PROGRAMS)]),
                **(env or {}),
            }
            command = [sys.executable, str(PROGRAMS / program), *arguments]
            started.append(all_of_them.enter_context(Process(command, variables)))
        yield started


def ends(started: Sequence[Process], limit: float) -> list[Result]:
    """Wait for the ends of all, at most `limit` seconds together."""
    deadline = time.monotonic() + limit
    return [each.end(deadline - time.monotonic()) for each in started]


def run_ranks(
    program: str | Path,
    size: int,
    *arguments: str,
    timeout: float = 100,
    env: dict[str, str] | None = None,
) -> list[Result]:
    """Run a program of tests/programs on so many ranks to the end of all."""
    with ranks(program, size, *arguments, env=env) as started:
        return ends(started, timeout)
