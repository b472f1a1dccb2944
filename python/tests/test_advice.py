"""Tests that functions, arguments, flags and variables named in messages exist."""

from __future__ import annotations

import ast
import functools
import gc
import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from conftest import torch_is_here
from processes import HERE, SOURCE

import symmem

ENVIRONMENT = HERE.parent.parent / "docs" / "reference" / "environment.md"


@functools.cache
def messages() -> list[tuple[str, str]]:
    """Return all strings of several words except docstrings, with their locations."""
    found = []
    for path in sorted((SOURCE / "symmem").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        inside: set[int] = set()
        for node in ast.walk(tree):
            text = None
            if isinstance(node, ast.JoinedStr):
                inside |= {id(part) for part in node.values}
                parts = [p.value if isinstance(p, ast.Constant) else "{}" for p in node.values]
                text = "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and id(node) not in inside | documentation:
                text = node.value
            if isinstance(text, str) and " " in text:
                found.append((f"{path.name}:{node.lineno}", text))
    return found


def flags() -> set[str]:
    """Return the flags of the programs."""
    text = "".join(path.read_text() for path in (SOURCE / "symmem").rglob("*.py"))
    return set(re.findall(r'add_argument\(\s*"(--[\w-]+)"', text))


def has(path: str) -> bool:
    """Return whether a dotted name exists, such as "symmem.group"."""
    module, *names = path.split(".")
    found: Any = importlib.import_module(module)
    for name in names:
        if not hasattr(found, name):
            try:
                found = importlib.import_module(f"{found.__name__}.{name}")
                continue
            except (ImportError, AttributeError):
                return False
        found = getattr(found, name)
    return True


def takes(call: str) -> bool:
    """Return whether a function has an argument, such as "symmem.init(timeout="."""
    function, _, argument = call.rstrip("=").partition("(")
    return (
        argument in inspect.signature(getattr(symmem, function.removeprefix("symmem."))).parameters
    )


def called(method: str) -> bool:
    """Return whether any object that messages mention has a method."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

    return any(hasattr(kind, method) for kind in (torch, torch.Tensor, DTensor, DeviceMesh, gc))


KINDS: dict[str, tuple[str, Callable[[str], bool], bool]] = {
    "function": (r"\bsymmem\.[a-z_]+(?:\.[a-z_]+)*", has, False),
    "class": (r"\bsymmem\.[A-Z]\w+", has, False),
    "argument": (r"\bsymmem\.[a-z_]+\(\w+=", takes, False),
    "flag": (r"(?<![\w-])--[a-z][a-z-]+", lambda name: name in flags(), False),
    "variable": (r"\bSYMMEM_[A-Z_]+", lambda name: f"`{name}`" in ENVIRONMENT.read_text(), False),
    "function of PyTorch": (r"\btorch\.[a-zA-Z_]+(?:\.[a-zA-Z_]+)*", has, True),
    "method": (r"(?<=\.)([a-z_]+)(?=\(\))", called, True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_names_in_messages_exist(kind: str) -> None:
    pattern, exists, needs_torch = KINDS[kind]
    if needs_torch and not torch_is_here():
        pytest.skip("NoTorchError: PyTorch is not installed")
    named = [(place, name) for place, text in messages() for name in re.findall(pattern, text)]
    missing = [(place, name) for place, name in named if not exists(name)]
    assert named or kind in ("flag", "argument"), "no message names one"
    assert not missing


def test_nonexistent_names_are_detected() -> None:
    assert not has("symmem.nothing")
    assert not takes("symmem.init(timeout_ms=")
    assert "--nothing" not in flags()
