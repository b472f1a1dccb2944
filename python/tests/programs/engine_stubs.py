"""Stubs for modules that vLLM's and SGLang's Python files import but their groups never call.

The files are those of the wheels (see engine_files.py). Only the packages of `STUBS` are replaced,
if they are not installed. In a stub module, every name is a class that raises an error if called.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from typing import Any

COMPILED = ("llguidance", "openai_harmony", "safetensors", "tvm_ffi", "xgrammar")
"""Packages that consist of compiled code."""

OTHERS = (
    "PIL",
    "aiohttp",
    "cachetools",
    "cbor2",
    "cpuinfo",
    "fastapi",
    "huggingface_hub",
    "openai",
    "orjson",
    "partial_json_parser",
    "prometheus_client",
    "pybase64",
    "requests",
    "starlette",
    "transformers",
    "urllib3",
    "uvloop",
)
"""Packages for serving and models that groups do not need."""

OWN = {
    "vllm._C_stable_libtorch",  # compiled
    "vllm.parser.harmony",  # builds xgrammar grammars on import
}
"""Modules of the engines that are compiled or call compiled ones."""

STUBS = {*COMPILED, *OTHERS}


class StubError(Exception):
    """A stub was called."""


class Stub(type):
    """The metaclass of the names in stub modules."""

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        raise StubError(f"{cls.__module__}.{cls.__name__} is a stub")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stub(f"{cls.__module__}.{cls.__name__}", name)

    def __or__(cls, other: Any) -> Any:
        return object

    __ror__ = __or__

    def __getitem__(cls, item: Any) -> Any:
        return cls


def stub(module: str, name: str) -> Stub:
    """Create a name in a stub module. Pydantic treats it as any type."""

    def schema(cls: Any, source: Any, handler: Any) -> dict[str, str]:
        return {"type": "any"}

    members = {"__module__": module, "__get_pydantic_core_schema__": classmethod(schema)}
    return Stub(name, (), members)


class StubModule(types.ModuleType):
    """A module in which every name is a stub."""

    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stub(self.__name__, name)


class Finder(MetaPathFinder, Loader):
    """Finds stubs for packages that are not installed."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name in OWN or name.partition(".")[0] in STUBS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        made = StubModule(spec.name)
        made.__path__ = []
        return made

    def exec_module(self, module: Any) -> None:
        pass


class OwnFinder(Finder):
    """Finds stubs for modules whose files exist."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        return super().find_spec(name, path, target) if name in OWN else None


def install(*more: str) -> None:
    """Make imports find stubs, including those of more packages.

    The package sglang itself is not executed, because it patches transformers. Its modules are
    those of the wheel.
    """
    STUBS.update(more)
    sys.meta_path.insert(0, OwnFinder())
    sys.meta_path.append(Finder())
    for folder in sys.path:
        if (Path(folder) / "sglang").is_dir():
            package = types.ModuleType("sglang")
            package.__path__ = [f"{folder}/sglang"]
            sys.modules["sglang"] = package
