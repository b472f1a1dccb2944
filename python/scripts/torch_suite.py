"""Runs PyTorch's own tests of torch.distributed with symmem in place of gloo.

    python python/scripts/torch_suite.py [--ranks 3] [--gloo] [--python] [--write] [TEST...]

The tests are those of `torch.testing._internal.distributed.distributed_test`, in the installed
PyTorch. The program fails unless all tests pass that a list in python/tests/suite names, which is
the same for PyTorch 2.11, 2.14 and 2.15; --write writes the list. With --gloo the tests run on
gloo, for comparison: it passes two more, of sparse tensors and of the name "gloo" in DDP's logs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import types
import unittest
from pathlib import Path
from typing import Any

LISTS = Path(__file__).resolve().parents[1] / "tests" / "suite"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--gloo", action="store_true", help="use gloo, for comparison")
    parser.add_argument("--python", action="store_true", help="use the process group in Python")
    parser.add_argument("--write", action="store_true", help="write the list of tests that pass")
    parser.add_argument("tests", nargs="*", help="names of tests (default: all)")
    return parser.parse_args()


def replace_gloo() -> None:
    """Make torch.distributed create a symmem group for the backend "gloo"."""
    from torch._C._distributed_c10d import Backend
    from torch.distributed import distributed_c10d

    from symmem._backend.create import create

    if hasattr(distributed_c10d, "_create_gloo_process_group"):  # PyTorch 2.14 and later
        distributed_c10d._create_gloo_process_group = lambda options, _: create(options)
        return

    gloo = distributed_c10d.ProcessGroupGloo

    class Kind(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return True  # PyTorch asserts the class of the group that it opens.

    class InGloosPlace(metaclass=Kind):
        def __new__(cls, store: Any, rank: int, size: int, timeout: Any) -> Any:
            caller = sys._getframe(1).f_locals
            if "global_ranks_in_group" not in caller:
                # The group that TORCH_DISTRIBUTED_DEBUG=DETAIL uses to compare calls.
                return gloo(store, rank, size, timeout=timeout)
            options = distributed_c10d._DistributedBackendOptions()
            options.store, options.timeout = store, timeout
            options.group_rank, options.group_size = rank, size
            options.group_id = caller["group_name"]
            options.global_ranks_in_group = list(caller["global_ranks_in_group"])
            return create(options)

    distributed_c10d.ProcessGroupGloo = InGloosPlace
    Backend.options = types.SimpleNamespace()


def cases(asked: argparse.Namespace) -> type[unittest.TestCase]:
    """Define the tests, whose ranks are forked from this process."""
    import torch
    from torch.testing._internal.distributed import distributed_test as tests

    if asked.python:  # It records no events for PyTorch's profiler.
        tests.PROFILING_SUPPORTED_BACKENDS.remove("gloo")
        tests.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.remove("gloo")
    elif not asked.gloo:
        find = tests.get_profiling_event

        def found(name: str, *rest: Any) -> list[Any]:
            events = find(name.replace("gloo:", "symmem:"), *rest)
            for event in events:
                event.name = event.name.replace("symmem:", "gloo:")
            return list(events)

        tests.get_profiling_event = found

    class Cases(tests.TestDistBackend, tests.DistributedTest._DistTestBase):  # type: ignore[misc]
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return Cases


class Result(unittest.TextTestResult):
    """Keeps the names of tests that passed."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.passed: set[str] = set()

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        """Keep the name."""
        super().addSuccess(test)
        self.passed.add(test._testMethodName)


def main() -> int:
    """Run the tests."""
    asked = arguments()
    os.environ |= {"WORLD_SIZE": str(asked.ranks), "BACKEND": "gloo", "OMP_NUM_THREADS": "1"}
    os.environ["TEMP_DIR"] = tempfile.mkdtemp()

    if asked.python:
        import torch

        torch.__version__ += ".dev"  # As in a version without a C++ backend.
    if not asked.gloo:
        replace_gloo()
    file = LISTS / f"{asked.ranks}_ranks.txt"
    known = set(file.read_text().split()) if file.exists() else set()
    if asked.python:  # It has no monitored barriers.
        known = {name for name in known if "monitored_barrier" not in name}
    want = set(asked.tests) or known
    kind = cases(asked)
    names = asked.tests or [n for n in dir(kind) if n.startswith("test_")]
    suite = unittest.TestSuite(kind(name) for name in sorted(names))
    runner = unittest.TextTestRunner(resultclass=Result, verbosity=2)
    result = runner.run(suite)
    passed = result.passed  # type: ignore[attr-defined]
    failed = sorted(t._testMethodName for t, _ in result.failures + result.errors)
    sys.stderr.flush()
    print(f"{len(passed)} passed, {len(failed)} failed: {' '.join(failed)}")
    if asked.write and not asked.python:
        file.write_text("".join(f"{name}\n" for name in sorted(passed)))
        return 0
    missing = sorted(want - passed)
    if missing:
        print(f"these should pass: {' '.join(missing)}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
