"""Which module of the package imports which: one way only, in the order that it names itself."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

import pytest
from processes import SOURCE

PACKAGE = SOURCE / "symmem"

Graph = dict[str, dict[str, str]]
"""What each module imports, and how: at the top, for types, or in a function."""


def imports_of(folder: Path) -> Graph:
    modules = {path.stem for path in folder.glob("*.py")}
    return {m: _Imports(modules, m).of((folder / f"{m}.py").read_text()) for m in sorted(modules)}


class _Imports(ast.NodeVisitor):
    """Finds what one module imports of its package."""

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
                self._add(([*name.split("."), "__init__"])[1])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        names = (node.module or "").split(".")
        if node.level:
            names.insert(0, "symmem")
        names = [name for name in names if name]
        if names[:1] != ["symmem"]:
            return
        for alias in node.names:
            self._add(([*names[1:], alias.name if alias.name in self.modules else "__init__"])[0])

    def _inside(self, node: ast.AST, how: str) -> None:
        before, self.how = self.how, how
        self.generic_visit(node)
        self.how = before

    def _add(self, name: str) -> None:
        if name in self.modules and name != self.own:
            self.found.setdefault(name, self.how)


def circle_in(graph: Graph) -> str:
    """Describe a circle of imports; it is empty if there is none."""
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


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circle_in(imports_of(PACKAGE)) == ""


def test_each_module_imports_those_alone_that_stand_before_it() -> None:
    """The comment at the top of the package names all modules in order."""
    lines = re.findall(r"^#   [\w ]+: ([\w, ]+)$", (PACKAGE / "__init__.py").read_text(), re.M)
    order = [name.strip() for line in lines for name in line.split(",")]
    graph = imports_of(PACKAGE)
    assert sorted(order) == sorted(graph)
    place = {name: number for number, name in enumerate(order)}
    wrong = [
        f"{name} imports {other} {how}"
        for name, others in graph.items()
        for other, how in others.items()
        if place[other] > place[name]
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("from symmem._b import thing", "at the top"),
        ("from symmem import _b", "at the top"),
        ("from . import _b", "at the top"),
        ("from ._b import thing", "at the top"),
        ("import symmem._b", "at the top"),
        ("if TYPE_CHECKING:\n    from symmem._b import thing", "for types"),
        ("def f():\n    from symmem import _b", "in a function"),
        ("class C:\n    async def f(self):\n        import symmem._b", "in a function"),
    ],
)
def test_every_way_to_import_counts(tmp_path: Path, text: str, how: str) -> None:
    (tmp_path / "__init__.py").write_text("from symmem import _a\n")
    (tmp_path / "_a.py").write_text(text)
    (tmp_path / "_b.py").write_text("import sys\nfrom symmem import _c\n")
    (tmp_path / "_c.py").write_text("from symmem._a import thing\n")
    want = f"_a imports _b ({how}) imports _c (at the top) imports _a (at the top)"
    assert circle_in(imports_of(tmp_path)) == want


@pytest.mark.parametrize("text", ["import symmem", "from symmem import empty"])
def test_a_name_of_the_package_itself_counts(tmp_path: Path, text: str) -> None:
    (tmp_path / "__init__.py").write_text("from symmem import _a\n")
    (tmp_path / "_a.py").write_text(text)
    want = "__init__ imports _a (at the top) imports __init__ (at the top)"
    assert circle_in(imports_of(tmp_path)) == want
