"""Runs the checks of backend.py with the process group in Python."""

from __future__ import annotations

import logging

import torch

torch.__version__ = torch.__version__.partition("+")[0] + ".dev20991231"

from harness import check, checks, main  # noqa: E402

LOGGED: list[str] = []


class Log(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        LOGGED.append(record.getMessage())


logging.getLogger("symmem").addHandler(Log())

import backend  # noqa: E402, F401

LEFT_OUT = {
    "tensors_in_symmetric_memory",  # DDP and FSDP2 use ordinary memory.
    "an_error_in_a_batch_does_not_affect_the_next",  # It does not support batches.
    "invalid_calls_raise_errors",  # It raises symmem's own errors.
    "large_lists_may_be_scaled",  # It supports premul_sum of single tensors only.
    "cpu_memory_has_no_allocator",  # It has no allocator at all.
    "mismatched_sizes_are_errors",
}
"""Checks that only the C++ backend passes."""


@check
def one_warning_is_logged() -> None:
    (line,) = [line for line in LOGGED if 'has no C++ backend "symmem" for PyTorch' in line]
    assert ".dev20991231" in line, line


if __name__ == "__main__":
    main([c.__name__ for c in checks if c.__name__ not in LEFT_OUT])
