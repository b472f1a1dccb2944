"""Finds the symmem error that caused an error of torch.distributed."""

from __future__ import annotations

import json

from symmem import errors
from symmem._c.library import exception
from symmem._torch.pytorch import loaded, modules


def last_error() -> errors.SymmemError | None:
    """Return the symmem error that caused the latest error of the backend "symmem", or None.

    The backend raises `torch.distributed.DistBackendError`. The returned error has the class and
    the data of the cause, such as the late ranks. It is the latest error on any thread.
    """
    if not loaded():
        return None
    find = getattr(modules["torch"].ops.symmem_c10d, "last_failure", None)
    text = find() if find is not None else ""
    return exception(json.loads(text)) if text else None
