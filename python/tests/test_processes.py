"""The deadlines of these tests: what hangs is ended, and says where it was."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

from processes import HERE, Process, run


def test_a_program_that_hangs_is_ended_and_names_its_line() -> None:
    program = "import time\ndef waiting_here(): time.sleep(1000)\nwaiting_here()"
    done = run(sys.executable, "-c", program, limit=2)
    assert done.code == -6, done
    assert "in waiting_here" in done.err
    assert "ended by the test: no end within 2.0 s" in done.err


def test_what_a_program_leaves_behind_does_not_keep_its_test() -> None:
    program = "import subprocess; print(subprocess.Popen(['sleep', '1000']).pid, flush=True)"
    with Process([sys.executable, "-c", program]) as process:
        done = process.end(60, left=0.1)
        assert done.code == 0, done
        left = int(done.out)
        watch = os.pidfd_open(left)
    # A descriptor of a process is readable when it has ended.
    ended, _, _ = select.select([watch], [], [], 60)
    os.close(watch)
    assert ended


def test_words_are_awaited_however_lines_are_divided() -> None:
    program = "print('one', end='', flush=True); print(' two one two', flush=True); input()"
    with Process([sys.executable, "-c", program]) as process:
        process.await_words("one two", 2)


def test_a_test_that_hangs_fails_with_its_stack(tmp_path: Path) -> None:
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
