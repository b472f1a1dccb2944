"""Builds the binaries for the wheel and computes its platform tag, as a build hook of hatchling.

The tag is derived from the newest glibc version that the binaries need and from the libraries to
which they are linked, so that pip installs the wheel only on systems where they run.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BINARIES = {
    "library.sh": "python/src/symmem/libsymmem.so",
    "command.sh": "python/.build/symmem",
}

BACKENDS = "python/src/symmem/_backend/libsymmem_torch_*.so"

PYTHONS = "SYMMEM_TORCH_PYTHONS"
"""Paths of Pythons, separated by spaces. The wheel gets a backend for the PyTorch of each."""

# Libraries that every manylinux system has, according to PEP 600.
ALLOWED = {
    "libc.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "libm.so.6",
    "librt.so.1",
    "libresolv.so.2",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
}

# Libraries that PyTorch has loaded before it loads a backend.
OF_TORCH = {"libc10.so", "libtorch_cpu.so", "libstdc++.so.6", "libgcc_s.so.1"}


OLDEST = (2, 28)


class BinaryError(Exception):
    """A binary cannot be built, or would not run on every system of its tag."""


def oldest_glibc(tables: str, allowed: set[str] = ALLOWED) -> tuple[int, int]:
    """Return the oldest glibc that a binary runs with, from the output of readelf."""
    needed = set(re.findall(r"\(NEEDED\).*\[(.+?)\]", tables))
    if strange := needed - allowed:
        raise BinaryError(f"is linked to {sorted(strange)}, which manylinux does not allow")
    versions = [(int(a), int(b)) for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", tables)]
    return max(versions, default=(2, 17))


def platform_tag(root: Path) -> str:
    """Return the tag of the systems on which all binaries run.

    The tag is at least that of PyTorch's wheels, because manylinux_2_28 also bounds the version of
    libstdc++.
    """
    oldest = OLDEST
    binaries = {root / binary: ALLOWED for binary in BINARIES.values()}
    binaries |= dict.fromkeys(root.glob(BACKENDS), ALLOWED | OF_TORCH)
    for binary, allowed in binaries.items():
        command = ["readelf", "--dynamic", "--version-info", "--wide", str(binary)]
        tables = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        try:
            oldest = max(oldest, oldest_glibc(tables, allowed))
        except BinaryError as e:
            raise BinaryError(f"{binary} {e}") from None
    return f"manylinux_{oldest[0]}_{oldest[1]}_{platform.machine()}"


def build(root: Path) -> None:
    """Build the binaries from the sources in Go, and the backends from those in C++."""
    for tool in ("go", "gcc"):
        if not shutil.which(tool):
            raise BinaryError(f"building symmem from source needs {tool}; install it")
    scripts = root / "python" / "scripts"
    for script in BINARIES:
        subprocess.run(["bash", str(scripts / script)], check=True)
    if pythons := os.environ.get(PYTHONS, "").split():
        for old in root.glob(BACKENDS):
            old.unlink()
        subprocess.run(["bash", str(scripts / "backend.sh"), *pythons], check=True)


class BuildHook(BuildHookInterface[BuilderConfig]):
    """Hooks into hatchling's builder of wheels."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the binaries and set the tag, before the files are collected."""
        root = Path(self.root)
        build(root)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(root)}"
