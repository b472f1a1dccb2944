"""Tests that need neither the library nor PyTorch."""

from __future__ import annotations

import builtins
import os
import re
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from processes import SOURCE, run

import symmem
from symmem import errors
from symmem._c import library
from symmem._c.constants import Code, check_level, path_choice
from symmem._rank import origin, rendezvous

DOCS = SOURCE.parent / "docs"
HEADER = SOURCE.parent.parent / "cmd" / "libsymmem" / "symmem.h"


def test_importing_loads_neither_torch_nor_the_library() -> None:
    words = "import sys, symmem; from symmem._c import library; print('torch' in sys.modules, "
    env = {"PYTHONPATH": str(SOURCE), "SYMMEM_LIBRARY": "/nowhere"}
    done = run(sys.executable, "-c", words + "library._loaded.cache_info().currsize)", env=env)
    assert (done.code, done.out) == (0, "False 0\n"), done


def test_public_names_have_docstrings() -> None:
    for name in symmem.__all__:
        thing = getattr(symmem, name)
        assert name == "__version__" or thing.__doc__, name


def test_links_in_the_guides_exist() -> None:
    for guide in [*DOCS.glob("*.md"), DOCS.parent / "README.md"]:
        for target in re.findall(r"\]\((\w[\w/]*\.md)\)", guide.read_text()):
            assert (guide.parent / target).exists(), f"{guide}: {target}"


def test_a_missing_library_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(errors.LibraryError, match="make lib"):
        library.Library(tmp_path / "libsymmem.so")
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    with pytest.raises(errors.LibraryError, match="glibc"):
        library.Library(broken)


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
def test_errors_derive_from_builtin_errors(
    error: type[Exception], builtin: type[Exception]
) -> None:
    raised = error("words")
    assert isinstance(raised, builtin)
    assert isinstance(raised, errors.SymmemError)
    assert isinstance(raised, RuntimeError)
    assert str(raised) == "words"


def test_errors_contain_data_from_the_library() -> None:
    variants = [
        {"ranks": [0, 2], "event": "alloc 4096 B", "site": "model.py:7"},
        {"ranks": [1], "event": "nothing", "site": None},
    ]
    divergence = errors.DivergenceError("m", data={"divergence": {"variants": variants}})
    assert divergence.sides[0] == ((0, 2), "alloc 4096 B", "model.py:7", ())
    assert divergence.sides[1].site == ""
    assert errors.DivergenceError("m").sides == []
    assert errors.MismatchError("m", data={"divergence": {"deviant": [2]}}).others == [2]
    deadlock = errors.DeadlockError("m", data={"divergence": {"elsewhere": {"1": "in Barrier 3"}}})
    assert deadlock.elsewhere == {1: "in Barrier 3"}
    ends = {"from": 0, "to": 2, "tag": 7, "number": 3, "sent": 8, "received": 4}
    messages = errors.MessageError(
        "m", data={"divergence": {"why": "sizes differ", "messages": [ends]}}
    )
    assert messages.ends == [(0, 2, 7, 3, 8, 4)]
    assert messages.fault == "sizes differ"
    assert errors.MessageError("m").ends == []
    assert errors.TimeoutError("m", data={"timeout": {"missing": [3]}}).missing == [3]
    assert errors.RankLostError("m", data={"rank_lost": {"ranks": [1, 2]}}).ranks == [1, 2]


@pytest.mark.parametrize(
    ("code", "data", "kind"),
    [
        (Code.DIVERGENCE, {"divergence": {"kind": "event"}}, errors.DivergenceError),
        (Code.DIVERGENCE, {"divergence": {"kind": "call"}}, errors.MismatchError),
        (Code.DIVERGENCE, {"divergence": {"kind": "place"}}, errors.DeadlockError),
        (Code.DIVERGENCE, {"divergence": {"kind": "messages"}}, errors.MessageError),
        (Code.TIMEOUT, {"timeout": {"missing": [1]}}, errors.TimeoutError),
        (Code.TIMEOUT, {"timeout": {"missing": [1], "absent": True}}, errors.AbsentError),
        (Code.CAPTURING, {}, errors.CapturingError),
        (Code.PANIC, {}, errors.InternalError),
        (Code.INTERRUPTED, {}, errors.InterruptedError),
        (Code.FAILED, {}, errors.SymmemError),
    ],
)
def test_classes_depend_on_the_data(
    code: Code, data: dict[str, Any], kind: type[errors.SymmemError]
) -> None:
    assert library._class_of(code, data) is kind


def test_every_code_has_a_class() -> None:
    general = {Code.SHORT, Code.FAILED}
    assert set(library._CLASSES) == set(Code) - general


@pytest.mark.skipif(not HEADER.exists(), reason="the header is not next to the package")
def test_constants_match_the_header() -> None:
    from symmem._c import constants as k
    from symmem._c import terms

    text = HEADER.read_text()
    numbers = {n: int(v) for n, v in re.findall(r"SYMMEM_(\w+) = (\d+)", text)}
    for code in Code:
        assert numbers[f"ERR_{code.name}"] == code
    for kind, prefix in (
        (k.Type, ""),
        (terms.Reduction, ""),
        (terms.Operation, ""),
        (k.Path, "PATH_"),
        (k.Check, "CHECK_"),
        (k.Word, "WORD_"),
    ):
        for member in kind:
            assert numbers[prefix + member.name] == member, member
    functions = set(re.findall(r"\b(symmem_\w+|nccl_\w+)\(", text))
    missing = {f for f in library._STATUS if f not in functions}
    assert not missing


def test_levels_and_paths_are_converted_by_name() -> None:
    assert check_level("every") == 3
    assert path_choice("window") == 3
    with pytest.raises(errors.InvalidError, match="sometimes"):
        check_level("sometimes")
    with pytest.raises(errors.InvalidError, match="scenic"):
        path_choice("scenic")


def test_notes_about_tensors_are_described() -> None:
    place = (3 << 44) + 512
    text = f'rank 0 has "note {place} of kind {0x70530001}"; rank 1 has "note 7 of kind 8"'
    found = library.readable(text)
    assert 'rank 0 has "a PyTorch tensor at segment 3 offset 0x200"' in found
    assert 'rank 1 has "note 7 of kind 8"' in found
    assert "4096 bytes" in library.readable(f"note 4096 of kind {0x70530004}")
    both = f"note {place} of kind {0x70530001}; note {place} of kind {0x70530003}"
    assert "garbage collection" in library.readable(both)
    assert "garbage collection" not in found
    assert "layout ffff" in library.readable(f"note -1 of kind {0x70530005}")


@pytest.mark.library
def test_an_unusable_backend_says_what_to_do() -> None:
    program = "import symmem; symmem.init(backend='nccl')"
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "SYMMEM_CUDA": "/nowhere/libcuda.so"}
    done = run(sys.executable, "-c", program, env=env)
    assert done.code == 1, done
    last = done.err.splitlines()[-1]
    assert last.startswith("symmem.errors.UnsupportedError: "), last
    assert "symmem doctor" in last
    assert '"host"' in last


class PaperStore:
    """A fake store of torch.distributed."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()

    def set(self, key: str, value: str) -> None:
        with self.lock:
            self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        with self.lock:
            return self.values[key]

    def add(self, key: str, amount: int) -> int:
        with self.lock:
            found = int(self.values.get(key, b"0")) + amount
            self.values[key] = str(found).encode()
            return found

    def check(self, keys: list[str]) -> bool:
        with self.lock:
            return all(key in self.values for key in keys)


def meet(machines: list[str], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    store, found = PaperStore(), {}
    local = threading.local()
    monkeypatch.setattr(rendezvous, "machine", lambda: local.machine)

    def rank(number: int) -> None:
        local.machine = machines[number]
        found[number] = rendezvous.options(store, number, len(machines), 20)

    threads = [threading.Thread(target=rank, args=(r,), daemon=True) for r in range(len(machines))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout=20)
    return [found[r] for r in range(len(machines))]


def test_ranks_on_one_machine_meet_at_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    found = meet(["a", "a", "a"], monkeypatch)
    assert len({(f["store"], f["token"]) for f in found}) == 1
    assert found[0]["store"].startswith("unix:@symmem-")
    assert [(f["local_rank"], f["local_size"]) for f in found] == [(0, 3), (1, 3), (2, 3)]


def test_ranks_on_two_machines_meet_at_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "reachable", lambda: "10.1.2.3")
    found = meet(["a", "b", "a", "b"], monkeypatch)
    assert found[0]["store"].startswith("10.1.2.3:")
    assert [(f["local_rank"], f["local_size"]) for f in found] == [(0, 2), (0, 2), (1, 2), (1, 2)]


def test_ranks_that_do_not_arrive_are_named() -> None:
    with pytest.raises(errors.TimeoutError, match="ranks 0, 2 of 3") as raised:
        rendezvous.options(PaperStore(), 1, 3, 0.01)
    assert raised.value.missing == [0, 2]


@pytest.mark.parametrize(
    ("given", "of_the_group", "want"),
    [({}, 90.0, 90_000), ({}, None, 600_000), ({"timeout_ms": 5000}, 90.0, 5000)],
    ids=["of the process group", "ten minutes", "given"],
)
def test_the_timeout_is(given: dict[str, int], of_the_group: float | None, want: int) -> None:
    options = dict(given)
    origin.add_store(origin.WorldSpec((0,), 0, PaperStore(), of_the_group), options)
    assert options["timeout_ms"] == want


def test_a_failing_store_is_not_a_late_rank() -> None:
    class Broken(PaperStore):
        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("connection reset")

    with pytest.raises(errors.SymmemError, match="failed: connection reset"):
        rendezvous.options(Broken(), 0, 2, 20)


def test_the_address_is_that_of_the_route_to_the_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert rendezvous.reachable() == "127.0.0.1"
    monkeypatch.setenv("MASTER_ADDR", "no such machine")
    assert rendezvous.reachable() == socket.gethostname()
