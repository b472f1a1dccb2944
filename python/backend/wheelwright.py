"""The build backend of the wheel (PEP 517), with nothing but the standard library.

A wheel of symmem is the package's files, one shared library and the symmem command, so zipping them
needs no build tool, and the wheel builds without the network. What takes care is the platform tag:
it is read off the two binaries, the newest glibc symbol that they ask for and what else they link,
so a wheel never promises more than they keep.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # Python 3.10 has no reader of TOML; the few fields that are needed have one form here.
    tomllib = None

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "symmem"
LIBRARY = PACKAGE / "libsymmem.so"
COMMAND = ROOT / ".build" / "symmem"

# What PEP 600 lets a manylinux library link without carrying it.
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


class WheelError(Exception):
    """The wheel cannot be built as it should be; the message says what to do."""


def project() -> dict[str, Any]:
    """Read the project table of pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    if tomllib is not None:
        table: dict[str, Any] = tomllib.loads(text)["project"]
        return table
    fields = r'^(name|version|description|requires-python) = "(.*)"'
    found = dict(re.findall(fields, text, re.M))
    extras = re.findall(r'^(torch|test) = \["(.*)"\]', text, re.M)
    scripts = re.findall(r'^(symmem-\w+) = "(.*)"', text, re.M)
    return {
        **found,
        "optional-dependencies": {k: [v] for k, v in extras},
        "scripts": dict(scripts),
    }


def linkage(library: Path) -> tuple[set[str], tuple[int, int]]:
    """Report what a library links, and the newest glibc that it needs, as readelf says."""
    out = subprocess.run(
        ["readelf", "--dynamic", "--version-info", "--wide", str(library)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.+?)\]", out))
    versions = [(int(a), int(b)) for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", out)]
    return needed, max(versions, default=(2, 17))


def platform_tag() -> str:
    """Name the platforms that the binaries run on: manylinux, by what they link."""
    newest = (2, 17)
    for binary in (LIBRARY, COMMAND):
        needed, glibc = linkage(binary)
        if strange := needed - ALLOWED:
            raise WheelError(f"{binary.name} links {sorted(strange)}, not allowed by manylinux")
        newest = max(newest, glibc)
    machine = sysconfig.get_platform().rsplit("-", 1)[-1].replace("-", "_")
    return f"manylinux_{newest[0]}_{newest[1]}_{machine}"


def build_binaries() -> None:
    """Build what is not there: pip builds from a copy without the Go sources."""
    for binary, script in ((LIBRARY, "library.sh"), (COMMAND, "command.sh")):
        if binary.exists():
            continue
        if not (ROOT.parent / "cmd").is_dir():
            raise WheelError(f"{binary.name} is not built, and there are no Go sources: make wheel")
        subprocess.run([str(ROOT / "scripts" / script)], check=True)


def metadata(p: dict[str, Any]) -> str:
    """Write the METADATA file."""
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {p['name']}",
        f"Version: {p['version']}",
        f"Summary: {p['description']}",
        f"Requires-Python: {p['requires-python']}",
        "License: Apache-2.0",
    ]
    lines += [f"Classifier: {c}" for c in p.get("classifiers", [])]
    for extra, requirements in p.get("optional-dependencies", {}).items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {r} ; extra == "{extra}"' for r in requirements]
    lines += ["Description-Content-Type: text/markdown", ""]
    return "\n".join(lines) + "\n" + (ROOT / "README.md").read_text(encoding="utf-8")


def members(p: dict[str, Any], tag: str, info: str) -> dict[str, bytes]:
    """List the files of the wheel with their contents, in order."""
    files: dict[str, bytes] = {}
    for path in sorted(PACKAGE.rglob("*")):
        if path.is_file() and path.suffix in {".py", ".so", ".typed", ".pyi"}:
            files[f"symmem/{path.relative_to(PACKAGE).as_posix()}"] = path.read_bytes()
    # Installers put what is in this folder next to the interpreter, and make it executable.
    files[f"{info.removesuffix('.dist-info')}.data/scripts/symmem"] = COMMAND.read_bytes()
    scripts = "".join(f"{name} = {where}\n" for name, where in p.get("scripts", {}).items())
    wheel = f"Wheel-Version: 1.0\nGenerator: wheelwright\nRoot-Is-Purelib: false\nTag: {tag}\n"
    files[f"{info}/METADATA"] = metadata(p).encode()
    files[f"{info}/WHEEL"] = wheel.encode()
    files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{scripts}".encode()
    license_file = ROOT.parent / "LICENSE"
    if license_file.exists():
        files[f"{info}/LICENSE"] = license_file.read_bytes()
    return files


def record(files: dict[str, bytes], info: str) -> bytes:
    """Write the RECORD file: every member with its hash and size."""
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}")
    return ("\n".join([*lines, f"{info}/RECORD,,"]) + "\n").encode()


def write(path: Path, files: dict[str, bytes]) -> None:
    """Write a zip whose bytes depend on nothing but its members."""
    stamp = (1980, 1, 1, 0, 0, 0)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, stamp)
            entry.compress_type = zipfile.ZIP_DEFLATED
            runs = name.endswith(".so") or ".data/scripts/" in name
            # pip looks for the type of the file before it makes a program executable.
            entry.external_attr = (stat.S_IFREG | (0o755 if runs else 0o644)) << 16
            z.writestr(entry, data)


def pack(directory: str, editable: bool) -> str:
    """Build a wheel into a directory and return its file name."""
    build_binaries()
    p = project()
    tag = f"py3-none-{platform_tag()}"
    stem = f"{p['name']}-{p['version']}"
    info = f"{stem}.dist-info"
    files = members(p, tag, info)
    if editable:
        files = {n: d for n, d in files.items() if n.startswith(stem)}
        files["symmem.pth"] = f"{PACKAGE.parent}\n".encode()
    files[f"{info}/RECORD"] = record(files, info)
    name = f"{stem}-{tag}.whl"
    os.makedirs(directory, exist_ok=True)
    write(Path(directory) / name, files)
    return name


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the wheel into a directory and return its file name (PEP 517)."""
    return pack(wheel_directory, editable=False)


def build_editable(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build a wheel that points back to the source tree (PEP 660)."""
    return pack(wheel_directory, editable=True)


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """Refuse: the sources are the repository, most of which is not Python (PEP 517)."""
    raise WheelError("there is no source distribution of symmem: build from the repository")
