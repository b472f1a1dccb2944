"""Limits the time of tests, and skips those that need what this machine lacks."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest
from processes import PROGRAMS, SOURCE, Result, run_ranks

sys.path.insert(0, str(SOURCE))
sys.path.append(str(PROGRAMS))

from symmem._c import library

LIBRARY = library.where()

DEADLINE = int(os.environ.get("SYMMEM_TEST_DEADLINE", "300"))
"""The time limit, in seconds, for each of set-up, call and tear-down of a test. Waits inside tests
have shorter deadlines; this limit catches unexpected hangs."""

BACKSTOP = 60
"""The additional seconds after which a test that cannot be interrupted ends the test run."""

_STDERR = pytest.StashKey[int]()


class NoTorchError(Exception):
    """PyTorch is not installed."""


class DeadlineError(Exception):
    """A test did not end in time. The message contains the stacks of its threads."""


Start = Callable[..., list[Result]]


def torch_is_here() -> bool:
    return importlib.util.find_spec("torch") is not None


def gpus_here() -> int:
    """Count the GPUs by their device files, because this process must not initialize CUDA."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "torch: needs PyTorch")
    config.addinivalue_line("markers", "library: needs libsymmem.so")
    config.addinivalue_line("markers", "gpus(n): needs so many GPUs of NVIDIA")
    # Output is not captured yet, so this is printed to the terminal.
    config.stash[_STDERR] = os.dup(2)


@contextlib.contextmanager
def _limited(item: pytest.Item, phase: str) -> Iterator[None]:
    """Raise an error with the stacks of all threads if a phase takes too long."""

    def late(number: int, frame: FrameType | None) -> None:
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file)
            file.seek(0)
            raise DeadlineError(f"{phase} of {item.nodeid}: over {DEADLINE} s\n{file.read()}")

    before = signal.signal(signal.SIGALRM, late)
    faulthandler.dump_traceback_later(
        DEADLINE + BACKSTOP, exit=True, file=item.config.stash[_STDERR]
    )
    signal.alarm(DEADLINE)
    try:
        yield
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with _limited(item, "set-up"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with _limited(item, "call"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    with _limited(item, "tear-down"):
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    no_torch = pytest.mark.skip(reason=f"{NoTorchError.__name__}: PyTorch is not installed")
    no_library = pytest.mark.skip(reason=f"LibraryError: {LIBRARY} is not built (make lib)")
    for item in items:
        if item.get_closest_marker("torch") and not torch_is_here():
            item.add_marker(no_torch)
        if item.get_closest_marker("library") and not LIBRARY.exists():
            item.add_marker(no_library)
        if (gpus := item.get_closest_marker("gpus")) and gpus_here() < gpus.args[0]:
            item.add_marker(pytest.mark.skip(reason=f"DeviceError: {gpus.args[0]} GPUs are needed"))


@pytest.fixture(scope="session")
def start() -> Start:
    return run_ranks


@pytest.fixture(scope="session")
def built() -> None:
    """Build the backend of torch.distributed, unless it is up to date."""
    script = SOURCE.parent / "scripts" / "backend.sh"
    subprocess.run([script, sys.executable], check=True)


@dataclass
class Checks:
    """The outcomes of a program's checks on each rank."""

    ranks: list[dict[str, str]]
    results: list[Result]

    def verify(self, name: str) -> None:
        for rank, found in enumerate(self.ranks):
            assert name in found, f"rank {rank} did not reach {name}\n{self.results[rank]}"
            assert found[name] == "ok", f"rank {rank}: {found[name]}"


def run_checks(program: str, ranks: int, **options: object) -> Checks:
    """Run a program whose checks print one line each; see programs/harness.py."""
    results = run_ranks(program, ranks, **options)  # type: ignore[arg-type]
    found = []
    for result in results:
        lines = [line.split(" ", 2) for line in result.out.splitlines()]
        found.append({w[1]: w[2].replace("\\n", "\n") for w in lines if w[0] == "CHECK"})
    return Checks(found, results)
