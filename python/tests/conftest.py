"""Starts programs of ranks, and says which tests need what this machine lacks."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
SOURCE = HERE.parent / "src"

sys.path.insert(0, str(SOURCE))

from symmem import _launch, _library  # noqa: E402

LIBRARY = _library.where()


class NoTorchError(Exception):
    """PyTorch is not installed."""


@dataclass(frozen=True)
class Result:
    """What one rank's process left behind."""

    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"exit {self.code}\n{self.out[-2000:]}\n{self.err[:2000]}"


Start = Callable[..., list[Result]]


def torch_is_here() -> bool:
    return importlib.util.find_spec("torch") is not None


def gpus_here() -> int:
    """Count the GPUs, by their files: CUDA must not start in the process that starts ranks."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "torch: needs PyTorch")
    config.addinivalue_line("markers", "library: needs libsymmem.so")
    config.addinivalue_line("markers", "gpus(n): needs so many GPUs of NVIDIA")


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


def run_ranks(
    program: str | Path,
    ranks: int,
    *arguments: str,
    timeout: float = 60,
    env: dict[str, str] | None = None,
) -> list[Result]:
    """Run a program of tests/programs on so many ranks, and wait for all, at most `timeout`."""
    port = _launch.free_port()
    children = []
    for rank in range(ranks):
        variables = _launch.environment(rank, ranks, port)
        variables |= {"PYTHONPATH": os.pathsep.join([str(SOURCE), str(PROGRAMS)]), **(env or {})}
        children.append(
            subprocess.Popen(
                [sys.executable, str(PROGRAMS / program), *arguments],
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return collect(children, timeout)


def collect(children: Sequence[subprocess.Popen[str]], timeout: float) -> list[Result]:
    deadline = time.monotonic() + timeout
    found = []
    for child in children:
        try:
            out, err = child.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            for one in children:
                one.kill()
            out, err = child.communicate()
            err += f"\nended by the test: no end within {timeout} s"
        found.append(Result(child.returncode, without_gloo(out), err))
    return found


def without_gloo(out: str) -> str:
    """Leave out what PyTorch 2.8's Gloo writes to the standard output of every program."""
    return "".join(x for x in out.splitlines(keepends=True) if not x.startswith("[Gloo] "))


@pytest.fixture(scope="session")
def start() -> Start:
    return run_ranks


@dataclass
class Checks:
    """The checks of a program, as each rank ended them."""

    ranks: list[dict[str, str]]
    results: list[Result]

    def verify(self, name: str) -> None:
        for rank, found in enumerate(self.ranks):
            assert name in found, f"rank {rank} did not come to {name}\n{self.results[rank]}"
            assert found[name] == "ok", f"rank {rank}: {found[name]}"


def run_checks(program: str, ranks: int, **options: object) -> Checks:
    """Run a program whose checks print one line each: see programs/harness.py."""
    results = run_ranks(program, ranks, **options)  # type: ignore[arg-type]
    found = []
    for result in results:
        lines = [line.split(" ", 2) for line in result.out.splitlines()]
        found.append({w[1]: w[2].replace("\\n", "\n") for w in lines if w[0] == "CHECK"})
    return Checks(found, results)
