"""What needs neither the library nor PyTorch."""

from __future__ import annotations

import builtins
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import SOURCE

import symmem
from symmem import _library, _rendezvous, errors
from symmem._constants import Code, check_level, path_choice

DOCS = SOURCE.parent / "docs"
HEADER = SOURCE.parent.parent / "cmd" / "libsymmem" / "symmem.h"


def test_importing_loads_neither_torch_nor_the_library() -> None:
    words = "import sys, symmem; from symmem import _library; print('torch' in sys.modules, "
    done = subprocess.run(
        [sys.executable, "-c", words + "_library._loaded)"],
        env={"PYTHONPATH": str(SOURCE), "SYMMEM_LIBRARY": "/nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False None\n"


def test_everything_public_has_a_docstring() -> None:
    for name in symmem.__all__:
        thing = getattr(symmem, name)
        assert name == "__version__" or thing.__doc__, name


def test_the_guides_name_only_what_there_is() -> None:
    modules = {"verify", "bench", "errors", "so", "h"}
    for guide in [*DOCS.glob("*.md"), DOCS.parent / "README.md"]:
        names = set(re.findall(r"(?<![\w/])symmem\.(\w+)", guide.read_text()))
        assert names <= {*symmem.__all__, *modules}, guide
        for target in re.findall(r"\]\((\w[\w/]*\.md)\)", guide.read_text()):
            assert (guide.parent / target).exists(), f"{guide}: {target}"


def test_a_missing_library_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(errors.LibraryError, match="make lib"):
        _library.Library(tmp_path / "libsymmem.so")
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    with pytest.raises(errors.LibraryError, match="glibc"):
        _library.Library(broken)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.TimeoutError, builtins.TimeoutError),
        (errors.OutOfMemoryError, MemoryError),
        (errors.InvalidError, ValueError),
        (errors.OutOfRangeError, IndexError),
        (errors.UnsupportedError, NotImplementedError),
        (errors.RankLostError, ConnectionError),
        (errors.TorchError, ImportError),
    ],
)
def test_errors_are_python_s_own_too(error: type[Exception], builtin: type[Exception]) -> None:
    raised = error("words")
    assert isinstance(raised, builtin)
    assert isinstance(raised, errors.SymmemError)
    assert isinstance(raised, RuntimeError)
    assert str(raised) == "words"


def test_errors_carry_what_the_library_knows() -> None:
    variants = [
        {"ranks": [0, 2], "event": "alloc 4096 B", "site": "model.py:7"},
        {"ranks": [1], "event": "nothing", "site": None},
    ]
    divergence = errors.DivergenceError("m", data={"divergence": {"variants": variants}})
    assert divergence.sides[0] == ((0, 2), "alloc 4096 B", "model.py:7")
    assert divergence.sides[1].site == ""
    assert errors.DivergenceError("m").sides == []
    assert errors.TimeoutError("m", data={"timeout": {"missing": [3]}}).missing == [3]
    assert errors.RankLostError("m", data={"rank_lost": {"ranks": [1, 2]}}).ranks == [1, 2]


def test_every_code_has_a_class() -> None:
    general = {Code.SHORT, Code.FAILED}
    assert set(_library._CLASSES) == set(Code) - general


@pytest.mark.skipif(not HEADER.exists(), reason="the header is not beside the package")
def test_numbers_are_those_of_the_header() -> None:
    from symmem import _constants as k

    text = HEADER.read_text()
    numbers = {n: int(v) for n, v in re.findall(r"SYMMEM_(\w+) = (\d+)", text)}
    for code in Code:
        assert numbers[f"ERR_{code.name}"] == code
    for kind, prefix in (
        (k.Type, ""),
        (k.Reduction, ""),
        (k.Operation, ""),
        (k.Path, "PATH_"),
        (k.Check, "CHECK_"),
        (k.Word, "WORD_"),
    ):
        for member in kind:
            assert numbers[prefix + member.name] == member, member
    functions = set(re.findall(r"\b(symmem_\w+|nccl_\w+)\(", text))
    missing = {f for f in _library._STATUS if f not in functions}
    assert not missing


def test_levels_and_paths_are_read_by_name() -> None:
    assert check_level("every") == 3
    assert path_choice("window") == 3
    with pytest.raises(ValueError, match="sometimes"):
        check_level("sometimes")
    with pytest.raises(ValueError, match="scenic"):
        path_choice("scenic")


def test_notes_about_tensors_are_written_out() -> None:
    place = (3 << 44) + 512
    text = f'rank 0 has "note {place} of kind {0x70530001}"; rank 1 has "note 7 of kind 8"'
    found = _library.readable(text)
    assert 'rank 0 has "a tensor of PyTorch\'s at segment 3 offset 0x200"' in found
    assert 'rank 1 has "note 7 of kind 8"' in found
    assert "4096 bytes" in _library.readable(f"note 4096 of kind {0x70530004}")
    assert "way ffff" in _library.readable(f"note -1 of kind {0x70530005}")


class PaperStore:
    """A store of torch.distributed, of paper."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self.changed:
            self.values[key] = value.encode()
            self.changed.notify_all()

    def get(self, key: str) -> bytes:
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.values, timeout=10)
            return self.values[key]


def meet(machines: list[str], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    store, found = PaperStore(), {}
    local = threading.local()
    monkeypatch.setattr(_rendezvous, "machine", lambda: local.machine)
    monkeypatch.setattr(_rendezvous, "_rounds", iter([0] * len(machines)))

    def rank(number: int) -> None:
        local.machine = machines[number]
        found[number] = _rendezvous.options(store, number, len(machines))

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(len(machines))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return [found[r] for r in range(len(machines))]


def test_ranks_of_one_machine_meet_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = meet(["a", "a", "a"], monkeypatch)
    assert len({(f["store"], f["token"]) for f in found}) == 1
    assert found[0]["store"].startswith("unix:@symmem-")
    assert [(f["local_rank"], f["local_size"]) for f in found] == [(0, 3), (1, 3), (2, 3)]


def test_ranks_of_two_machines_meet_at_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rendezvous, "reachable", lambda: "10.1.2.3")
    found = meet(["a", "b", "a", "b"], monkeypatch)
    assert found[0]["store"].startswith("10.1.2.3:")
    assert [(f["local_rank"], f["local_size"]) for f in found] == [(0, 2), (0, 2), (1, 2), (1, 2)]


def test_a_machine_is_reached_by_its_address_towards_the_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert _rendezvous.reachable() == "127.0.0.1"
    monkeypatch.setenv("MASTER_ADDR", "no such machine")
    assert _rendezvous.reachable() == socket.gethostname()
