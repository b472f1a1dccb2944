"""Forks ranks from a process that has imported PyTorch, which saves each rank several seconds.

`Server` is used by the tests, and `serve` runs in the process that forks. That process imports the
modules that the tests name, starts no threads, and never loads libsymmem.so, whose Go runtime does
not survive a fork. A child runs a program as Python itself would: as `__main__`, with its own
arguments and variables, and with a normal interpreter shutdown.

A forked rank has the same addresses and hash seed as its server. Separately started ranks differ in
both, so every rank has its own server.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

READY = 200.0
"""The maximum time of a fork, and that of imports, in seconds."""

MOST = 1 << 20
"""The maximum size of a request, which holds a program's arguments and variables, in bytes."""


IMPORTED, PID, END = "imported", "pid", "end"
"""The format of messages: the number of imports; the process ID, and later the exit code."""


class ServerError(Exception):
    """A server or one of its children has exited too early."""


class Child:
    """A program that a server has forked, with some of the interface of subprocess.Popen."""

    def __init__(self, connection: socket.socket):
        self._connection = connection
        self.returncode: int | None = None
        self.pid = _received(connection, PID, READY)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code. The process ID is not reused until this context ends."""
        if self.returncode is None:
            self.returncode = _received(self._connection, END, timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.wait()
        finally:
            self._connection.close()


def _received(connection: socket.socket, what: str, timeout: float | None) -> int:
    come, _, _ = select.select([connection], [], [], timeout)
    if not come:
        raise subprocess.TimeoutExpired("a forked program", timeout or 0)
    found, _, number = connection.recv(100).decode().partition(" ")
    if found != what:
        raise ServerError(f"{found or 'nothing'} {number} came from the server, not {what}")
    return int(number)


class Server:
    """The client side: starts a server, and requests programs from it."""

    def __init__(self, variables: dict[str, str]):
        self._control, theirs = _connected()
        with theirs:
            # The server's error output belongs to the test that requested it.
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env=variables,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )

    def close(self) -> None:
        """Stop the server and all its children."""
        with self._process:
            self._control.close()

    def load(self, modules: Sequence[str]) -> Callable[[], int]:
        """Begin to import modules, and return a function that waits for the end."""
        self._control.send(json.dumps(modules).encode())
        return lambda: _received(self._control, IMPORTED, READY)

    def start(self, command: Sequence[str], variables: dict[str, str], out: int, err: int) -> Child:
        """Fork a program with the given descriptors as standard output and error."""
        ours, theirs = _connected()
        request = json.dumps([list(command), variables]).encode()
        with theirs:
            socket.send_fds(self._control, [request], [theirs.fileno(), out, err])
        return Child(ours)


def _connected() -> tuple[socket.socket, socket.socket]:
    """Return a connection that preserves message boundaries."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class _Forked:
    """The server side of a child."""

    def __init__(self, pid: int, connection: socket.socket):
        self.pid, self.connection = pid, connection
        self.watch = os.pidfd_open(pid)
        self.ended = False

    def report(self) -> None:
        """Send the exit code. The child stays a zombie, so that its process ID is not reused."""
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert found is not None
        self.ended = True
        code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        with contextlib.suppress(BrokenPipeError):  # The test has closed the connection.
            self.connection.send(f"{END} {code}".encode())

    def end(self) -> None:
        """Kill the child, with its session if it has created one."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.close()

    def close(self) -> None:
        self.connection.close()
        os.close(self.watch)


def _load(modules: Sequence[str]) -> None:
    """Import modules, and check that this process can still be forked."""
    for module in modules:
        importlib.import_module(module)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1 or "symmem" in sys.modules:
        raise ServerError(f"{threads} threads and {modules} are not what may be forked")
    gc.freeze()  # Otherwise garbage collection in each child would copy all pages.


def serve(control: socket.socket) -> tuple[CodeType, dict[str, Any]]:
    """Fork programs for the tests until the tests end. In a child, return the code to run."""
    forked: list[_Forked] = []
    while True:
        connections = {each.connection.fileno(): each for each in forked}
        watches = {each.watch: each for each in forked if not each.ended}
        ready = select.select([control.fileno(), *connections, *watches], [], [])[0][0]
        if ready in watches:
            watches[ready].report()
        elif ready in connections:
            connections[ready].end()
            forked.remove(connections[ready])
        else:
            request, descriptors, _, _ = socket.recv_fds(control, MOST, 3)
            if not request:
                break
            if not descriptors:
                _load(modules := json.loads(request))
                control.send(f"{IMPORTED} {len(modules)}".encode())
                continue
            connection = socket.socket(fileno=descriptors[0])
            if not (pid := os.fork()):
                for each in forked:
                    each.close()
                control.close()
                return _become(json.loads(request), connection, descriptors[1:])
            for each in descriptors[1:]:
                os.close(each)
            forked.append(_Forked(pid, connection))
    for each in forked:
        each.end()
    sys.exit()


def _become(
    request: Any, connection: socket.socket, outputs: Sequence[int]
) -> tuple[CodeType, dict[str, Any]]:
    """Make this child look like a Python process that was started with the program."""
    (program, *arguments), variables = request
    inherited = os.environ["PYTHONPATH"].split(os.pathsep)
    os.setsid()
    for number, descriptor in enumerate(outputs, 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    with connection:
        connection.send(f"{PID} {os.getpid()}".encode())
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = [program, *arguments]
    given = variables["PYTHONPATH"].split(os.pathsep)
    sys.path[: 1 + len(inherited)] = [str(Path(program).parent), *given]
    names = vars(sys.modules["__main__"])
    names.clear()
    names.update(__name__="__main__", __file__=program, __builtins__=builtins)
    names.update(dict.fromkeys(("__doc__", "__package__", "__loader__", "__spec__")))
    return compile(Path(program).read_bytes(), program, "exec", dont_inherit=True), names


if __name__ == "__main__":
    # Import it by name, because the program's module replaces __main__.
    import fork_server

    exec(*fork_server.serve(socket.socket(fileno=int(sys.argv[1]))))
