"""Starting ranks: their exit codes as one, and what they write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from conftest import SOURCE

RANKS = 2
PROGRAM = f"""
import signal
import sys
from symmem import _launch
# A shell's background jobs, such as these tests may be, ignore it, and so would the ranks.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(_launch.start(sys.argv[1], sys.argv[2:], {RANKS}))
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start ranks that each run a module of Python's own."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"},
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_ranks_and_is_in_the_exit_code(number: signal.Signals) -> None:
    with start("http.server", "--bind", "127.0.0.1", "0") as launcher:
        assert launcher.stdout is not None
        for _ in range(RANKS):
            assert "Serving HTTP" in launcher.stdout.readline()
        launcher.send_signal(number)
        # The end of the output is that of the last process which can write to it.
        launcher.communicate(timeout=20)
        assert launcher.returncode == 128 + number


def test_a_rank_that_could_not_run_counts_as_such() -> None:
    with start("http.server", "--no-such-flag") as launcher:
        launcher.communicate(timeout=20)
        assert launcher.returncode == 2


def test_a_report_has_standard_output_alone() -> None:
    program = """
import os
from symmem import _launch
with _launch.take_stdout() as out:
    os.write(1, b"a library\\n")
    print("the program")
    out.write("the report\\n")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert done.stdout == "the report\n"
    assert done.stderr.splitlines() == ["a library", "the program"]
