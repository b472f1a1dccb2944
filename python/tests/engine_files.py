"""Downloads the unmodified Python files of vLLM and SGLang from PyPI, once per machine.

    python engine_files.py FOLDER 3.12     fetches them for another version of Python

Their compiled files are omitted; see programs/engine_stubs.py.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ENGINES = {"vllm": "0.33.0", "sglang": "0.5.23"}
"""The versions with which the plug-ins are tested."""

PACKAGES = (
    "annotated-types==0.8.0",
    "cloudpickle==3.1.3",
    "msgspec==0.22.0",
    "psutil==7.2.2",
    "pydantic==2.14.4",
    "pydantic-core==2.50.5",
    "pyzmq==27.3.0",
    "regex==2026.11.19",
    "typing-inspection==0.4.5",
)
"""The packages whose functions the groups call. All other imports are stubs."""

LIMIT = 240.0
"""The maximum time of a download, in seconds."""


class UnreachableError(Exception):
    """A package could not be downloaded from PyPI."""


def cache() -> Path:
    """Return the folder of files for this version of Python."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "symmem-ci" / f"engines-py{sys.version_info[0]}.{sys.version_info[1]}"


def fetch(folder: Path | None = None, python: str = "") -> Path:
    """Download and unpack the files if they are missing, and return the folder to import from.

    Args:
        folder: the target folder; the default is the cache.
        python: the version of Python that will import the files; the default is this one.

    Raises:
        UnreachableError: a package could not be downloaded from PyPI.
    """
    folder = folder or cache()
    version = ("--python-version", python) if python else ()
    wanted = "\n".join([*(f"{n}=={v}" for n, v in ENGINES.items()), *PACKAGES])
    complete = folder / "complete"
    folder.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists() or complete.read_text() != wanted:
            shutil.rmtree(folder)
            folder.mkdir()
            _pip("install", "--target", str(folder), *version, *PACKAGES)
            for name, release in ENGINES.items():
                _unpack(name, release, folder)
            complete.write_text(wanted)
    return folder


def _unpack(name: str, version: str, folder: Path) -> None:
    """Download a wheel, and unpack its Python files and metadata."""
    with tempfile.TemporaryDirectory() as work:
        # SGLang has one wheel for each version of Python, but their Python files are the same.
        _pip("download", "-d", work, "--python-version", "3.12", f"{name}=={version}")
        (wheel,) = Path(work).glob("*.whl")
        with zipfile.ZipFile(wheel) as file:
            found = [n for n in file.namelist() if n.endswith((".py", "METADATA", "points.txt"))]
            file.extractall(folder, found)
    if name == "sglang":
        # Some files look for the folders of the sources that they would compile.
        for sources in ("csrc", "include"):
            (folder / "sglang" / "kernels" / "jit" / sources).mkdir(exist_ok=True)


def _pip(*arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "1"]
    options = ["-q", "--no-deps", "--only-binary", ":all:"]
    command = [*pip, arguments[0], *options, *arguments[1:]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"{' '.join(arguments)}: not done in {LIMIT} s") from None
    if done.returncode != 0:
        raise UnreachableError(f"{' '.join(arguments)}: {done.stderr.strip()[-500:]}")


if __name__ == "__main__":
    print(fetch(Path(sys.argv[1]), sys.argv[2]))
