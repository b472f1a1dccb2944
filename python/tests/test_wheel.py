"""The wheel: what it carries, what its binaries link, and that it runs where it is installed."""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import LIBRARY
from processes import HERE, run

sys.path.insert(0, str(HERE.parent / "backend"))

import wheelwright

pytestmark = pytest.mark.library

PROGRAM = """
import symmem, sys
assert "torch" not in sys.modules
world = symmem.init(backend="host", check="every")
with symmem.use(world):
    block = symmem.alloc(4096)
symmem.check()
print(symmem.__version__, symmem.__file__)
symmem.finalize(force=True)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for binary in (wheelwright.LIBRARY, wheelwright.COMMAND):
        if not binary.exists():
            pytest.skip(f"LibraryError: {binary} is not built (make wheel)")
    folder = tmp_path_factory.mktemp("wheel")
    return folder / wheelwright.build_wheel(str(folder))


def test_the_tag_promises_what_the_binaries_keep(wheel: Path) -> None:
    needed, glibc = wheelwright.linkage(LIBRARY)
    assert needed <= wheelwright.ALLOWED
    assert wheelwright.linkage(wheelwright.COMMAND)[1] <= glibc
    assert glibc <= (2, 34), "the library needs a newer glibc than manylinux_2_34"
    assert f"manylinux_{max(glibc, (2, 17))[0]}_" in wheel.name


def test_a_library_that_links_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheelwright, "linkage", lambda _: ({"libssl.so.3"}, (2, 17)))
    with pytest.raises(wheelwright.WheelError, match="libssl"):
        wheelwright.platform_tag()


def test_every_member_is_recorded(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as z:
        names = z.namelist()
        record = z.read(next(n for n in names if n.endswith("RECORD"))).decode().splitlines()
        assert {line.split(",")[0] for line in record} == set(names)
        for line in record[:-1]:
            name, digest, size = line.rsplit(",", 2)
            data = z.read(name)
            want = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
            assert digest == f"sha256={want.decode()}"
            assert int(size) == len(data)
    assert "symmem/libsymmem.so" in names
    assert "symmem/py.typed" in names
    assert f"symmem-{wheelwright.project()['version']}.data/scripts/symmem" in names
    assert not [n for n in names if n.endswith((".h", ".pyc"))]


def test_a_build_is_repeatable(wheel: Path, tmp_path: Path) -> None:
    again = tmp_path / wheelwright.build_wheel(str(tmp_path))
    assert again.read_bytes() == wheel.read_bytes()


def test_it_runs_in_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    clean = tmp_path / "clean"
    made = run(sys.executable, "-m", "venv", "--without-pip", str(clean))
    assert made.code == 0, made
    python = str(clean / "bin" / "python")
    env = {"PATH": os.environ["PATH"], "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    pip = [sys.executable, "-m", "pip", "--python", python]
    installed = run(*pip, "install", "-q", "--no-index", "--no-deps", str(wheel), env=env)
    assert installed.code == 0, installed
    done = run(python, "-c", PROGRAM, env=env, cwd=tmp_path)
    assert done.code == 0, done
    assert str(clean) in done.out
    help_text = run(python, "-m", "symmem.verify", "--help", env=env)
    assert help_text.code == 0, help_text
    assert "symmem launch" in help_text.out
    # What errors say to run is there.
    env["PATH"] = f"{clean / 'bin'}:/usr/bin:/bin"
    version = run(str(clean / "bin" / "symmem"), "version", env=env)
    assert (version.code, version.out[:7]) == (0, "symmem "), version
    started = run("symmem", "launch", "-n", "2", "--", python, "-c", PROGRAM, env=env, cwd=tmp_path)
    assert started.code == 0, started
