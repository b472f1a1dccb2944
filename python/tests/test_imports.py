"""Tests that imports within the package follow the order listed in its __init__.py."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

import pytest
from processes import SOURCE

PACKAGE = SOURCE / "symmem"

Graph = dict[str, dict[str, str]]
"""The imports of each module, and where they are: at the top, for types, or in a function."""


def imports_of(folder: Path) -> Graph:
    """Return the imports of all modules of the package symmem in a folder."""
    files = {".".join(f.relative_to(folder).with_suffix("").parts): f for f in folder.rglob("*.py")}
    return {m: _Imports(set(files), m).of(files[m].read_text()) for m in sorted(files)}


class _Imports(ast.NodeVisitor):
    """Finds a module's imports from its own package."""

    def __init__(self, modules: set[str], own: str):
        self.modules, self.own = modules, own
        self.found: dict[str, str] = {}
        self.how = "at the top"

    def of(self, text: str) -> dict[str, str]:
        self.visit(ast.parse(text))
        return self.found

    def visit_If(self, node: ast.If) -> None:
        self._inside(node, "for types" if "TYPE_CHECKING" in ast.dump(node.test) else self.how)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._inside(node, "in a function")

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._inside(node, "in a function")

    def visit_Import(self, node: ast.Import) -> None:
        for name in (alias.name for alias in node.names):
            if name.split(".")[0] == "symmem":
                self._add(name.split(".")[1:])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        names = (node.module or "").split(".") if node.module else []
        if node.level:
            above = ["symmem", *self.own.split(".")][: -node.level]
            names = [*above, *names]
        if names[:1] == ["symmem"]:
            for alias in node.names:
                self._add([*names[1:], alias.name])

    def _inside(self, node: ast.AST, how: str) -> None:
        before, self.how = self.how, how
        self.generic_visit(node)
        self.how = before

    def _add(self, path: list[str]) -> None:
        """Add the longest prefix of a dotted path that is a module or a package."""
        for end in range(len(path), -1, -1):
            for name in (".".join(path[:end]), ".".join([*path[:end], "__init__"])):
                if name in self.modules:
                    if name != self.own:
                        self.found.setdefault(name, self.how)
                    return


def circle_in(graph: Graph) -> str:
    """Describe a circular import, or return an empty string if there is none."""
    done: set[str] = set()

    def walk(path: list[str]) -> str:
        here = path[-1]
        if here in path[:-1]:
            way = path[path.index(here) :]
            steps = [f"{b} ({graph[a][b]})" for a, b in itertools.pairwise(way)]
            return " imports ".join([way[0], *steps])
        if here in done:
            return ""
        found = next((f for f in (walk([*path, name]) for name in graph[here]) if f), "")
        done.add(here)
        return found

    return next((found for found in (walk([name]) for name in graph) if found), "")


def out_of_order(graph: Graph, order: list[str]) -> list[str]:
    """Return the imports that violate the order of packages, lowest layer first."""
    place = {name: number for number, name in enumerate(order)}
    return [
        f"{name} imports {other} {how}"
        for name, others in graph.items()
        for other, how in others.items()
        if place[layer(other)] > place[layer(name)]
    ]


def layer(module: str) -> str:
    """Return the package of a module, or the module itself if it is in none."""
    return module.partition(".")[0]


def test_imports_are_not_circular() -> None:
    assert circle_in(imports_of(PACKAGE)) == ""


def test_each_package_imports_only_packages_listed_before_it() -> None:
    """The comment at the top of the package names all packages in order."""
    lines = re.findall(r"^#   (\w+): .+$", (PACKAGE / "__init__.py").read_text(), re.M)
    graph = imports_of(PACKAGE)
    assert sorted(lines) == sorted({layer(m) for m in graph})
    assert out_of_order(graph, lines) == []


def test_an_import_against_the_order_is_detected(tmp_path: Path) -> None:
    for name, text in {
        "__init__": "",
        "_a.__init__": "",
        "_a.one": "from symmem._a import two",
        "_a.two": "def f():\n    from symmem._b.one import thing",
        "_b.__init__": "",
        "_b.one": "from symmem import errors\nfrom symmem._a import one",
        "errors": "",
    }.items():
        file = tmp_path / (name.replace(".", "/") + ".py")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    graph = imports_of(tmp_path)
    found = out_of_order(graph, ["errors", "_a", "_b", "__init__"])
    assert found == ["_a.two imports _b.one in a function"]
    assert out_of_order(graph, ["errors", "_b", "_a", "__init__"]) == [
        "_b.one imports _a.one at the top"
    ]


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("from symmem._p.b import thing", "at the top"),
        ("from symmem._p import b", "at the top"),
        ("from . import b", "at the top"),
        ("from .b import thing", "at the top"),
        ("from .._p.b import thing", "at the top"),
        ("import symmem._p.b", "at the top"),
        ("if TYPE_CHECKING:\n    from symmem._p.b import thing", "for types"),
        ("def f():\n    from symmem._p import b", "in a function"),
        ("class C:\n    async def f(self):\n        import symmem._p.b", "in a function"),
    ],
)
def test_every_form_of_import_is_detected(tmp_path: Path, text: str, how: str) -> None:
    inner = tmp_path / "_p"
    inner.mkdir()
    (tmp_path / "__init__.py").write_text("from symmem._p import a\n")
    (inner / "__init__.py").write_text("")
    (inner / "a.py").write_text(text)
    (inner / "b.py").write_text("import sys\nfrom symmem import _c\n")
    (tmp_path / "_c.py").write_text("from symmem._p.a import thing\n")
    want = f"_p.a imports _p.b ({how}) imports _c (at the top) imports _p.a (at the top)"
    assert circle_in(imports_of(tmp_path)) == want


@pytest.mark.parametrize("text", ["import symmem", "from symmem import empty"])
def test_importing_a_name_of_the_package_is_detected(tmp_path: Path, text: str) -> None:
    (tmp_path / "__init__.py").write_text("from symmem import _a\n")
    (tmp_path / "_a.py").write_text(text)
    want = "__init__ imports _a (at the top) imports __init__ (at the top)"
    assert circle_in(imports_of(tmp_path)) == want
