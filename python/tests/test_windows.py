"""Tests the copy of a group's windows, which threads read while another replaces it."""

from __future__ import annotations

import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import symmem
from symmem._c.constants import Word
from symmem._rank.group import Group, WindowTable

SIZE = 4096


class Growing:
    """A fake library that returns one more window on each call, or none."""

    def __init__(self) -> None:
        self.words = [0] * (max(Word) + 1)
        self.count = 0

    def number(self, name: str, handle: int, capacity: int, pairs: Any) -> int:
        """Write the windows as symmem_windows does."""
        self.count = (self.count + 1) % 50
        for i in range(self.count):
            pairs[2 * i], pairs[2 * i + 1] = (i + 1) * SIZE, SIZE
        return self.count


def test_the_window_table_is_replaced_as_a_whole() -> None:
    """Threads always see the starts and the ends of the same windows."""
    library: Any = Growing()
    group = object.__new__(Group)
    group.windows = WindowTable(library, 1)
    beyond: Any = SimpleNamespace(data_ptr=lambda: 100 * SIZE, nbytes=1)
    troubles: list[BaseException] = []
    ended = threading.Event()

    def ask() -> None:
        try:
            while not ended.is_set():
                assert not symmem.is_symmetric(beyond, group)
        except BaseException as e:  # raised on another thread, so report it in this one
            troubles.append(e)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    asking = [threading.Thread(target=ask) for _ in range(2)]
    try:
        for thread in asking:
            thread.start()
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline and not troubles:
            group.windows.refresh()
    finally:
        ended.set()
        for thread in asking:
            thread.join()
        sys.setswitchinterval(interval)
    assert troubles == []
