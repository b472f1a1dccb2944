"""Tests the launchers that users start ranks with."""

from __future__ import annotations

import os
import re
import sys

import processes
import pytest
from processes import PROGRAMS, SOURCE, Result, held_port
from test_raw import names

COMMAND = os.environ.get("SYMMEM_COMMAND", "")
EXAMPLE = SOURCE.parents[1] / "examples" / "allreduce.py"

pytestmark = pytest.mark.library


def run(*command: str) -> Result:
    """Run a launcher without the variables of another one."""
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    env["PYTHONPATH"] = os.pathsep.join([str(SOURCE), str(PROGRAMS)])
    return processes.run(*command, env=env)


@pytest.mark.skipif(not COMMAND, reason="SYMMEM_COMMAND names no symmem command")
@pytest.mark.parametrize("ranks", [2, 4])
def test_symmem_launch(ranks: int) -> None:
    program = str(PROGRAMS / "raw.py")
    done = run(COMMAND, "launch", "-n", str(ranks), "--", sys.executable, program)
    assert done.code == 0, done
    found = re.findall(r"CHECK (\w+) ok", done.out)
    assert sorted(found) == sorted(names("raw.py") * ranks)


@pytest.mark.torch
@pytest.mark.skipif(not COMMAND, reason="SYMMEM_COMMAND names no symmem command")
def test_the_readme_example() -> None:
    done = run(COMMAND, "launch", "-n", "3", "--", sys.executable, str(EXAMPLE))
    assert done.code == 0, done
    assert sorted(re.findall(r"rank (\d) sum 6.0", done.out)) == ["0", "1", "2"]


@pytest.mark.torch
def test_torchrun() -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    with held_port() as port:
        launcher += [f"--master-port={port}"]
        done = run(*launcher, "-m", "symmem.verify", "--backend", "host", "--rounds", "1")
    assert done.code == 0, done
    assert "2 ranks on the host backend" in done.out
    assert "0 wrong on all ranks" in done.out
