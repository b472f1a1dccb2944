"""Tests suspending memory, on real processes with the host backend."""

from __future__ import annotations

import pytest
from conftest import run_checks

pytestmark = [pytest.mark.library, pytest.mark.torch]


def test_suspension() -> None:
    checks = run_checks("suspension.py", 2)
    for name in (
        "tensors_keep_their_addresses",
        "contents_can_be_kept",
        "calls_are_rejected_while_suspended",
        "a_refusal_leaves_nothing_suspended",
    ):
        checks.verify(name)
