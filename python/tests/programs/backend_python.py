"""The checks of backend.py with the process group in Python, for an unknown version of PyTorch."""

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
    "tensors_in_symmetric_memory",  # DDP and FSDP2 get ordinary memory.
    "an_error_in_a_batch_does_not_reach_the_next",  # It has no lists of works.
    "mistakes_are_errors_with_names",  # They are errors of symmem.
    "sizes_that_do_not_fit_are_errors",
}
"""Checks that only the C++ backend passes."""


@check
def one_line_is_logged() -> None:
    (line,) = LOGGED
    assert 'has no C++ backend "symmem" for PyTorch' in line, line
    assert ".dev20991231" in line, line


if __name__ == "__main__":
    main([c.__name__ for c in checks if c.__name__ not in LEFT_OUT])
