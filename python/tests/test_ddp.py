"""Tests training with PyTorch's DDP on real processes."""

from __future__ import annotations

import pytest
from conftest import run_checks
from test_raw import names

pytestmark = [pytest.mark.library, pytest.mark.torch]


@pytest.mark.parametrize("ranks", [2, 3])
def test_ddp_accepts_the_hook_of_the_guide(ranks: int) -> None:
    checks = run_checks("ddp.py", ranks, timeout=90)
    for name in names("ddp.py"):
        checks.verify(name)
