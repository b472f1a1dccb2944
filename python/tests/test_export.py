"""Tests that PyTorch's tools can read the files that symmem export writes."""

from __future__ import annotations

import os
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import processes
import pytest
from processes import Result

COMMAND = os.environ.get("SYMMEM_COMMAND", "")
RANKS = 3

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not COMMAND, reason="SYMMEM_COMMAND names no symmem command"),
]


def run(*command: str, **variables: str) -> Result:
    return processes.run(*command, env={**os.environ, **variables})


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of a run in which all ranks agree."""
    folder = tmp_path_factory.mktemp("run") / "traces"
    done = run(
        *(COMMAND, "verify", "--backend=host", f"--ranks={RANKS}", "--cases=4", "--churn=40"),
        *("--rounds=2", "--groups=3", "--callsites"),
        SYMMEM_TRACE=str(folder),
    )
    assert done.code == 0, done
    return folder


def export(traces: Path, kind: str, target: Path) -> Path:
    done = run(COMMAND, "export", str(traces), f"--{kind}", str(target))
    assert done.code == 0, done
    return target


def analyze(dumps: Path, database: Path) -> tuple[Result, Any]:
    """Run PyTorch's analyzer, and return its result and its list of collectives."""
    module = "torch.distributed.flight_recorder.fr_trace"
    done = run(sys.executable, "-m", module, str(dumps), "-o", str(database))
    assert done.code == 0, done
    with database.open("rb") as file:
        return done, pickle.load(file)[1].collectives


def cut_after_last_collective(trace: Path) -> None:
    """Remove the last collective and all later events, as if the rank had stopped."""
    content = bytearray(trace.read_bytes())
    (count,) = struct.unpack_from("<Q", content, 128)  # docs/reference/trace.md
    collective, second = 18, 2
    records = [content[4096 + 32 * n : 4096 + 32 * (n + 1)] for n in range(count)]
    last = max(n for n, r in enumerate(records) if r[6] == collective and not r[7] & second)
    struct.pack_into("<Q", content, 128, last)
    trace.write_bytes(content)


def test_analyzer_finds_agreement(traces: Path, tmp_path: Path) -> None:
    dumps = export(traces, "flight-recorder", tmp_path / "dumps")
    done, collectives = analyze(dumps, tmp_path / "database")
    assert len(collectives) > 10
    assert all(c.pass_check for c in collectives), done
    assert "nccl:all_reduce" in {c.collective_name for c in collectives}


@pytest.fixture
def stopped(traces: Path, tmp_path: Path) -> Path:
    """Traces of a run in which rank 1 stopped before its last collective."""
    folder = tmp_path / "stopped"
    folder.mkdir()
    for file in traces.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    cut_after_last_collective(folder / "rank1.trace")
    return folder


def test_analyzer_finds_missing_rank(stopped: Path, tmp_path: Path) -> None:
    dumps = export(stopped, "flight-recorder", tmp_path / "dumps")
    done, collectives = analyze(dumps, tmp_path / "database")
    assert "Not all ranks joining collective" in done.err + done.out, done
    assert [c.missing_ranks for c in collectives if c.missing_ranks] == [{1}]


def test_memory_viz_reads_snapshots(stopped: Path, tmp_path: Path) -> None:
    from torch.cuda import _memory_viz

    folder = export(stopped, "snapshot", tmp_path / "snapshots")
    for rank in range(RANKS):
        with (folder / f"snapshot_rank{rank}").open("rb") as file:
            snapshot = pickle.load(file)
        events = snapshot["device_traces"][0]
        assert {"segment_alloc", "alloc", "free_completed"} <= {e["action"] for e in events}
        assert ("active_allocated" in str(snapshot["segments"])) == (rank == 1)
        assert "alloc" in _memory_viz.trace(snapshot)
        assert "total_reserved" in _memory_viz.segsum(snapshot)
        for page in (_memory_viz.trace_plot(snapshot), _memory_viz.segment_plot(snapshot)):
            assert "MemoryViz" in page
