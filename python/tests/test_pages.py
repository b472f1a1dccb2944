"""Tests that Python on pages compiles and that its calls to symmem match the signatures."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import SOURCE

import symmem
from symmem._api import operators

ROOT = SOURCE.parent.parent
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("python/**/*.md")]
    if not {"measurements", ".pytest_cache"} & {*page.parts}
)

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
SPAN = re.compile(r"`([^`\n]*\bsymmem\.[a-z_.]+\([^`\n]*)`")
NAME = re.compile(r"(?<![\w/.])symmem\.([a-z]\w*)")
OPERATORS = "torch.ops.symmem."


def snippets(text: str) -> Iterator[str]:
    """Yield code blocks, and calls to symmem in the text."""
    yield from BLOCK.findall(text)
    for span in SPAN.findall(BLOCK.sub("", text)):
        line = span.replace("…", "...")
        yield f"{line} pass" if line.endswith(":") else line


def signature(name: str) -> inspect.Signature:
    """Return the signature of a dotted name. Raise AttributeError if it does not exist."""
    if name.startswith(OPERATORS):
        operator = operators.OPERATORS.get(name.removeprefix(OPERATORS))
        if operator is None:
            raise AttributeError(f"{name} is no operator")
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature(
            [
                inspect.Parameter(
                    p.split()[-1].partition("=")[0],
                    kind,
                    default=None if "=" in p else inspect.Parameter.empty,
                )
                for p in operator.schema.partition(" ->")[0].strip("()").split(", ")
            ]
        )
    found: object = symmem
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    assert callable(found), name
    return inspect.signature(found)


def mistakes(code: str) -> Iterator[str]:
    """Yield the mistakes in a snippet's use of symmem."""
    try:
        tree = ast.parse(f"def f():\n{' ' * 4}{code}" if code.startswith("return ") else code)
    except SyntaxError as e:
        yield f"{code!r}: {e}"
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "symmem":
            for name in node.names:
                if not hasattr(symmem, name.name):
                    yield f"symmem has no {name.name}"
        if isinstance(node, ast.Call):
            text = ast.unparse(node.func)
            if not re.fullmatch(r"(torch\.ops\.)?symmem\.[\w.]+", text):
                continue
            try:
                signature(text).bind(*node.args, **{k.arg or "": k.value for k in node.keywords})
            except (AttributeError, TypeError) as e:
                yield f"{ast.unparse(node)}: {e}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_on_pages_is_valid(page: Path) -> None:
    found = [m for code in snippets(page.read_text()) for m in mistakes(code)]
    assert not found, found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_on_pages_exist(page: Path) -> None:
    others = {"verify", "bench", "errors", "triton", "so", "h", "pc", "test"}
    python = page.is_relative_to(
        ROOT / "python"
    )  # on other pages, capitalized names may be from Go
    names = re.findall(r"(?<![\w/])symmem\.(\w+)" if python else NAME, page.read_text())
    assert {*names} <= {*symmem.__all__, *others}


def test_engine_recipes_are_checked() -> None:
    codes = list(snippets((ROOT / "python/docs/adopting.md").read_text()))
    for call in ("symmem.init(", "symmem.all_reduce(", 'torch.ops.symmem.all_reduce(x, "sum"'):
        assert any(call in code for code in codes), (call, codes)
    assert len(codes) > 15


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("symmem.init(determinist=True)", "determinist"),
        ("symmem.all_reduced(x)", "all_reduced"),
        ("return torch.ops.symmem.all_reduce(x, 'sum')", "group"),
        ("torch.ops.symmem.all_reduced(x)", "operator"),
        ("from symmem import allocate", "allocate"),
        ("with symmem.use(g, enabled=False): pass", "enabled"),
        ("symmem.all_reduce(x", "never closed"),
    ],
)
def test_a_mistake_on_a_page_is_detected(code: str, why: str) -> None:
    assert any(why in m for m in mistakes(code)), list(mistakes(code))
