"""Tests the wheel's platform tag. scripts/release_check.sh installs a wheel."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from processes import HERE


class NoHatchlingError(Exception):
    """hatchling is not installed."""


sys.path.insert(0, str(HERE.parent))
hatch_build = pytest.importorskip(
    "hatch_build", reason=f"{NoHatchlingError.__name__}: hatchling is not installed"
)
ROOT = HERE.parents[1]


def tables(binary: str) -> str:
    if not (ROOT / binary).exists():
        pytest.skip(f"LibraryError: {binary} is not built (make wheel)")
    command = ["readelf", "--dynamic", "--version-info", "--wide", str(ROOT / binary)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("binary", hatch_build.BINARIES.values())
def test_binaries_run_with_glibc_2_28(binary: str) -> None:
    assert hatch_build.oldest_glibc(tables(binary)) <= (2, 28)


@pytest.mark.torch
def test_backends_run_on_manylinux_2_28(built: None) -> None:
    backends = sorted(ROOT.glob(hatch_build.BACKENDS))
    assert backends
    for binary in backends:
        text = tables(str(binary))
        allowed = hatch_build.ALLOWED | hatch_build.OF_TORCH
        assert hatch_build.oldest_glibc(text, allowed) <= (2, 28), binary
        library = [int(n) for n in re.findall(r"GLIBCXX_3\.4\.(\d+)", text)]
        assert max(library) <= 24, binary


def test_the_tag_has_the_newest_glibc_version_required() -> None:
    assert hatch_build.oldest_glibc("(NEEDED) [libc.so.6] GLIBC_2.2.5 GLIBC_2.38") == (2, 38)
    assert hatch_build.oldest_glibc("GLIBC_2.2.5") == (2, 2)


def test_a_binary_linked_to_another_library_is_rejected() -> None:
    with pytest.raises(hatch_build.BinaryError, match=r"libssl\.so\.3"):
        hatch_build.oldest_glibc("(NEEDED) Shared library: [libssl.so.3]")
