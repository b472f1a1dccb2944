"""Registers the backend with torch.distributed.

PyTorch 2.14 and later call `register` through the package's entry point when a program first uses
the name "symmem". For older versions, `import symmem` registers the backend.
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
    methods = {"register_mem_pool": _register_mem_pool, "deregister_mem_pool": _deregister_mem_pool}
    add_backend(NAME, _create, DEVICES, methods, {"mem_allocator": _mem_allocator})


def register_with_torch() -> None:
    """Register the backend now or, if torch is not imported yet, when the program imports it."""
    module = sys.modules.get(DISTRIBUTED)
    if module is None:
        sys.meta_path.insert(0, _Finder())
    elif hasattr(module, "Backend"):
        register()


def _create(options: Any, _: Any) -> Any:
    """Create the backend of a process group. The import is deferred until the first use."""
    from symmem._backend.create import create

    return create(options)


def _register_mem_pool(backend: Any, pool: Any, symm: bool = False) -> None:
    """See `memory_pools.register_mem_pool`. Memory of symmem is always symmetric."""
    _require(backend, "register_mem_pool")
    from symmem._backend.memory_pools import register_mem_pool

    register_mem_pool(backend, pool)


def _deregister_mem_pool(backend: Any, pool: Any) -> None:
    """Do nothing: memory of symmem is deregistered when it is unmapped or the group is closed."""
    _require(backend, "deregister_mem_pool")


def _mem_allocator(backend: Any) -> Any:
    """See `memory_pools.mem_allocator`."""
    from symmem._backend.memory_pools import mem_allocator

    return mem_allocator(backend)


def _require(backend: Any, method: str) -> None:
    """Raise the error for a missing method unless the backend is symmem's.

    The methods are added to the base class of all backends.
    """
    if backend.name() != NAME:
        raise AttributeError(f"{type(backend).__name__!r} object has no attribute {method!r}")


class _Finder(MetaPathFinder):
    """Finds the module `DISTRIBUTED` and gives it a loader that registers the backend."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the module `DISTRIBUTED`, once."""
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
        """Create the module with the other loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load the module with the other loader, and register the backend."""
        self._loader.exec_module(module)
        register()
