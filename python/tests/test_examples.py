"""Tests that the Kubernetes examples match the schema."""

from __future__ import annotations

import sys
from pathlib import Path

import processes
import pytest
from processes import SOURCE

VALIDATOR = Path(sys.executable).parent / "kubernetes-validate"
EXAMPLES = sorted((SOURCE.parents[1] / "examples" / "kubernetes").glob("*.yaml"))


@pytest.mark.skipif(not VALIDATOR.exists(), reason="kubernetes-validate is not installed")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_kubernetes_accepts_the_example(example: Path, tmp_path: Path) -> None:
    done = processes.run(str(VALIDATOR), "--strict", str(example))
    assert done.code == 0, done
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(example.read_text().replace("restartPolicy:", "restartPolcy:"))
    assert processes.run(str(VALIDATOR), "--strict", str(wrong)).code != 0
