"""Starting ranks: their exit codes as one, and what they write."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from processes import SOURCE, Process, run

RANKS = 2
PROGRAM = f"""
import signal
import sys
from symmem._rank import launch
# A shell's background jobs, such as these tests may be, ignore it, and so would the ranks.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(launch.start(sys.argv[1], sys.argv[2:], {RANKS}))
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"}


def start(*arguments: str) -> Process:
    """Start ranks that each run a module of Python's own."""
    return Process([sys.executable, "-c", PROGRAM, *arguments], ENVIRONMENT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_ranks_and_is_in_the_exit_code(number: signal.Signals) -> None:
    with start("http.server", "--bind", "127.0.0.1", "0") as launcher:
        # The ranks write to one pipe, and each its text and the end of the line by themselves.
        launcher.await_words("Serving HTTP", RANKS)
        launcher.send(number)
        assert launcher.end(60).code == 128 + number


def test_a_rank_that_could_not_run_counts_as_such() -> None:
    with start("http.server", "--no-such-flag") as launcher:
        assert launcher.end(60).code == 2


def test_a_report_has_standard_output_alone() -> None:
    program = """
import os
from symmem._rank import launch
with launch.take_stdout() as out:
    os.write(1, b"a library\\n")
    print("the program")
    out.write("the report\\n")
"""
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = run(sys.executable, "-c", program, env=env)
    assert (done.code, done.out) == (0, "the report\n"), done
    assert done.err.splitlines() == ["a library", "the program"]
