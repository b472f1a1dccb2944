"""Tests the traces that symmem.init writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import run_checks

NAMES = ["a_file_is_rejected_as_the_trace_folder", "init_writes_a_trace"]

pytestmark = [pytest.mark.library, pytest.mark.torch]


def test_init_writes_a_trace(tmp_path: Path) -> None:
    checks = run_checks("traced.py", 2, env={"SYMMEM_TEST_FOLDER": str(tmp_path / "traces")})
    for name in NAMES:
        checks.verify(name)
