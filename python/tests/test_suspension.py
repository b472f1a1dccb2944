"""Memory that is released for some time, on real processes and the host backend."""

from __future__ import annotations

import pytest
from conftest import run_checks

pytestmark = [pytest.mark.library, pytest.mark.torch]


def test_suspension() -> None:
    checks = run_checks("suspension.py", 2)
    for name in ("tensors_keep_their_addresses", "contents_are_kept", "calls_are_refused"):
        checks.verify(name)
