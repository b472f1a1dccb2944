"""A world with a trace in SYMMEM_TEST_FOLDER."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import torch
from harness import RANK, check, main, raises

import symmem

FOLDER = Path(os.environ["SYMMEM_TEST_FOLDER"])


@check
def a_file_is_rejected_as_the_trace_folder() -> None:
    raises(symmem.SymmemError, lambda: symmem.init(backend="host", timeout=20, trace=__file__))


@check
def init_writes_a_trace() -> None:
    symmem.init(backend="host", timeout=20, trace=str(FOLDER))
    symmem.all_reduce(symmem.ones(100))
    symmem.broadcast(torch.ones(7), src=0)
    path = FOLDER / f"rank{RANK}.trace"
    content = path.read_bytes()
    assert content.startswith(b"SYMTRACE")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert b"AllReduce sum of 100 float32" in content
    assert b"Broadcast of 7 float32" in content


if __name__ == "__main__":
    main()
