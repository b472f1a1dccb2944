"""Registers the backend with torch.distributed.

PyTorch 2.14 and later call `register` for the first use of the name "symmem", through the entry
point of the package. Before 2.14 `import symmem` registers the backend.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from symmem._torch.pytorch import DISTRIBUTED, add_backend

NAME = "symmem"

DEVICES = ["cpu", "cuda"]


def register() -> None:
    """Register the backend, once."""
    add_backend(NAME, _create, DEVICES)


def register_with_torch() -> None:
    """Register the backend now or, if the program imports torch later, then."""
    module = sys.modules.get(DISTRIBUTED)
    if module is None:
        sys.meta_path.insert(0, _Finder())
    elif hasattr(module, "Backend"):
        register()


def _create(options: Any, _: Any) -> Any:
    """Make the backend of a process group: see `create`. This imports nothing before its use."""
    from symmem._backend.create import create

    return create(options)


class _Finder(MetaPathFinder):
    """Finds torch.distributed, with a loader that registers the backend."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module of torch.distributed that has the backends."""
        if name != DISTRIBUTED:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Registers the backend after another loader has loaded the module."""

    def __init__(self, loader: Loader):
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as the other loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load the module, then register the backend."""
        self._loader.exec_module(module)
        register()
