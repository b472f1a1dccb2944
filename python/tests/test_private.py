"""Tests that only one module uses private names of PyTorch, which may change in any release."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from processes import SOURCE

ONLY = "symmem/_torch/pytorch.py"

OF_PYTHON = {"_fields_", "_getframe", "_replace", "_type_"}
"""Documented names of sys, ctypes and collections that begin with an underscore."""


def private_names(text: str) -> Iterator[tuple[int, str]]:
    """Yield the private names of other modules that a module uses, with their lines.

    In modules of symmem only `self` and `cls` have private attributes, so any other is taken for
    one of PyTorch's. Modules of PyTorch may also be named in strings, and attributes in getattr.
    """
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            names = [] if own else [node.attr]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            names = [a.value for a in node.args[1:2] if isinstance(a, ast.Constant)]
        elif isinstance(node, ast.Constant) and str(node.value).startswith("torch."):
            names = node.value.split(".")
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in of_torch(alias.name)]
        elif isinstance(node, ast.ImportFrom):
            path = of_torch(node.module or "")
            names = [*path, *(alias.name for alias in node.names if path)]
        yield from ((node.lineno, name) for name in names if is_private(name))


def of_torch(module: str) -> list[str]:
    """Split the name of a PyTorch module. Return an empty list for other modules."""
    parts = module.split(".")
    return parts if parts[0] == "torch" else []


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OF_PYTHON


def test_one_module_uses_private_names_of_pytorch() -> None:
    found = {
        file.relative_to(SOURCE).as_posix(): [*private_names(file.read_text())]
        for file in sorted((SOURCE / "symmem").rglob("*.py"))
    }
    assert found.pop(ONLY)
    assert {file: names for file, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import torch._dynamo", "_dynamo"),
        ("from torch._C import thing", "_C"),
        ("def f():\n    from torch import _C", "_C"),
        ("torch._mkldnn", "_mkldnn"),
        ("self.module._mkldnn", "_mkldnn"),
        ("pytorch().module._mkldnn", "_mkldnn"),
        ("'torch._dynamo' in sys.modules", "_dynamo"),
        ("hasattr(backend, '_comm_ptr')", "_comm_ptr"),
    ],
)
def test_every_use_of_a_private_name_is_detected(text: str, name: str) -> None:
    assert [found for _, found in private_names(text)] == [name]


@pytest.mark.parametrize(
    "text",
    ["self._field", "cls._field", "sys._getframe(1)", "torch.__version__", "from a._b import c"],
)
def test_other_names_are_ignored(text: str) -> None:
    assert [*private_names(text)] == []
