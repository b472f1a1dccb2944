"""Tests the deadlines of processes and tests."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

import pytest
from processes import HERE, Process, ends, ranks, run, run_ranks

WAITING = """
def waiting_here():
    print("here", flush=True)
    time.sleep(1000)

waiting_here()
"""


def test_a_hanging_program_is_killed_and_reports_its_line() -> None:
    with Process([sys.executable, "-c", f"import time\n{WAITING}"]) as process:
        process.await_words("here")
        done = process.end(0.2)
    assert done.code == -6, done
    assert "in waiting_here" in done.err
    assert "ended by the test: no end within 0.2 s" in done.err


def test_leftover_processes_do_not_block_the_test() -> None:
    program = "import subprocess; print(subprocess.Popen(['sleep', '1000']).pid, flush=True)"
    with Process([sys.executable, "-c", program]) as process:
        done = process.end(60, left=0.1)
        assert done.code == 0, done
        left = int(done.out)
        watch = os.pidfd_open(left)
    # A process descriptor becomes readable when the process has exited.
    ended, _, _ = select.select([watch], [], [], 60)
    os.close(watch)
    assert ended


def program_that_forks(folder: Path, text: str) -> Path:
    """Write a program that is forked because it imports PyTorch."""
    program = folder / "program.py"
    program.write_text(f"import os, signal, subprocess, sys, time\nimport torch\n{text}")
    return program


@pytest.mark.torch
def test_forked_ranks_exit_like_programs(tmp_path: Path) -> None:
    text = """
rank = int(os.environ["RANK"])
if rank == 0:
    raise KeyError("a mistake")
print("written before the end")
if rank == 1:
    sys.exit(3)
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
    first, second, third = run_ranks(program_that_forks(tmp_path, text), 3)
    assert first.code == 1, first
    assert "KeyError: 'a mistake'" in first.err
    assert 'program.py", line 6, in <module>' in first.err
    assert (second.code, second.out) == (3, "written before the end\n"), second
    assert (third.code, third.out) == (-9, "written before the end\n"), third


@pytest.mark.torch
def test_hanging_forked_ranks_are_killed_and_report_their_lines(tmp_path: Path) -> None:
    with ranks(program_that_forks(tmp_path, WAITING), 2) as started:
        for process in started:
            process.await_words("here")
        all_done = ends(started, 0.2)
    for done in all_done:
        assert done.code == -6, done
        assert "in waiting_here" in done.err
        assert "ended by the test: no end within" in done.err


@pytest.mark.torch
def test_leftover_processes_of_a_forked_rank_are_killed(tmp_path: Path) -> None:
    text = "print(subprocess.Popen(['sleep', '1000']).pid, flush=True)"
    with ranks(program_that_forks(tmp_path, text), 1) as (process,):
        done = process.end(60, left=0.1)
        assert done.code == 0, done
        watch = os.pidfd_open(int(done.out))
    ended, _, _ = select.select([watch], [], [], 60)
    os.close(watch)
    assert ended


@pytest.mark.torch
def test_forked_ranks_have_their_own_variables_addresses_and_hashes(tmp_path: Path) -> None:
    """As separately started ranks have. Such differences between ranks must not matter."""
    text = """
assert "symmem" not in sys.modules, "it was loaded before the fork"
assert __name__ == "__main__" and sys.argv == [__file__, "an argument"]
assert os.getsid(0) == os.getpid()
print(os.environ["RANK"], os.environ["SYMMEM_GIVEN"], id(torch), hash("words"))
"""
    program = program_that_forks(tmp_path, text)
    results = run_ranks(program, 2, "an argument", env={"SYMMEM_GIVEN": "yes"})
    assert [r.code for r in results] == [0, 0], results
    first, second = (r.out.split() for r in results)
    assert (first[:2], second[:2]) == (["0", "yes"], ["1", "yes"])
    assert first[2] != second[2]
    assert first[3] != second[3]


def test_words_are_found_across_writes() -> None:
    program = "print('one', end='', flush=True); print(' two one two', flush=True); input()"
    with Process([sys.executable, "-c", program]) as process:
        process.await_words("one two", 2)


def test_a_hanging_test_fails_with_its_stack(tmp_path: Path) -> None:
    (tmp_path / "test_hang.py").write_text(
        "import threading\n"
        "def waiting_here(): threading.Event().wait()\n"
        "def test_hang(): waiting_here()\n"
        "def test_next(): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-q", "test_hang.py"]
    env = {**os.environ, "PYTHONPATH": str(HERE), "SYMMEM_TEST_DEADLINE": "1"}
    done = run(*command, env=env, cwd=tmp_path)
    assert done.code == 1, done
    assert "DeadlineError: call of test_hang.py::test_hang: over 1 s" in done.out
    assert "in waiting_here" in done.out
    assert "1 failed, 1 passed" in done.out
