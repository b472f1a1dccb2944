"""The errors of symmem behind those of torch.distributed."""

from __future__ import annotations

import json

from symmem import errors
from symmem._c.library import exception
from symmem._torch.pytorch import loaded, modules


def last_error() -> errors.SymmemError | None:
    """Return symmem's error behind the last DistBackendError of its backend, or None.

    The backend of torch.distributed raises `torch.distributed.DistBackendError`; this has the class
    and the data of the cause, such as the ranks that are late. It is that of any thread.
    """
    if not loaded():
        return None
    find = getattr(modules["torch"].ops.symmem_c10d, "last_failure", None)
    text = find() if find is not None else ""
    return exception(json.loads(text)) if text else None
