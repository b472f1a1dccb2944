"""Runs a program's checks in the same order on every rank, and prints a line for each."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import TypeVar

RANK = int(os.environ.get("RANK", "0"))
SIZE = int(os.environ.get("WORLD_SIZE", "1"))
ON_GPU = os.environ.get("SYMMEM_TEST_BACKEND", "nccl") == "nccl"

# In one folder, Inductor of a rank may load a library that another rank is still writing.
os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{tempfile.gettempdir()}/symmem-inductor-{RANK}"

Raised = TypeVar("Raised", bound=BaseException)

checks: list[Callable[[], None]] = []


def device() -> str:
    """Return the device of this rank's tensors. Ranks may share GPUs."""
    import torch

    return f"cuda:{RANK % torch.cuda.device_count()}" if ON_GPU else "cpu"


def check(function: Callable[[], None]) -> Callable[[], None]:
    """Register a function as a check."""
    checks.append(function)
    return function


def main(only: list[str] | None = None) -> None:
    """Run all checks, even after a failure, so that the ranks stay in step."""
    failed = False
    for function in checks:
        if only and function.__name__ not in only:
            continue
        try:
            function()
            outcome = "ok"
        except BaseException:
            outcome = traceback.format_exc().replace("\n", "\\n")
            failed = True
        print(f"CHECK {function.__name__} {outcome}", flush=True)
    sys.exit(1 if failed else 0)


def raises(kind: type[Raised], function: Callable[[], object]) -> Raised:
    """Expect that a function raises an exception, and return the exception."""
    try:
        found = function()
    except kind as e:
        return e
    raise AssertionError(f"{kind.__name__} was not raised; the result is {found!r}")
