"""Symmetric GPU memory for collectives, for programs that use PyTorch.

Tensors created in a scope are at the same place on every rank, in memory that is registered with
NCCL, so that collectives on them access the memory of peers directly. If ranks diverge, all of them
get an error that names the first difference, instead of wrong sums or a hang.

    import symmem

    torch.distributed.init_process_group("nccl")
    symmem.init()
    with symmem.use():
        x = torch.empty(1024, 8192, device="cuda", dtype=torch.bfloat16)
    symmem.all_reduce(x)

The guides are in `docs` next to the sources. `import symmem` imports neither torch nor the library.
"""

# The packages, lowest layer first. Each imports only packages listed before it, even for types and
# inside functions.
#
#   errors: exceptions and warnings
#   _c: the C library
#   _torch: PyTorch and its CUDA allocator
#   _rank: this process as a rank, with its groups
#   _api: the functions that programs call
#   functional: collectives with gradients
#   _device: checked signals for kernels; barriers and signals of handles
#   _backend: the backend of torch.distributed
#   engines: the plug-ins of vLLM and SGLang
#   _version: the version
#   __init__: the names that are public
#   triton: checked signals for Triton kernels, imported by programs that use them
#   verify: a program

from __future__ import annotations

from symmem import functional as functional
from symmem._api.attaching import attach, detach
from symmem._api.barriers import barrier, forget_stream, synchronize
from symmem._api.collectives import (
    all_gather_into_tensor,
    all_gather_v,
    all_reduce,
    all_to_all_single,
    broadcast,
    reduce_scatter_tensor,
    reduce_scatter_v,
)
from symmem._api.lists import all_gather, all_gather_v_list, all_to_all, reduce_scatter
from symmem._api.make import alloc, empty, empty_like, full, ones, zeros
from symmem._api.messages import irecv, isend, recv, send
from symmem._api.norms import (
    all_reduce_rms_norm,
    all_reduce_rms_norm_fp8,
    reduce_scatter_rms_norm,
    reduce_scatter_rms_norm_fp8,
)
from symmem._api.opening import (
    finalize,
    group,
    init,
    is_initialized,
    library_path,
    open_world,
    world,
)
from symmem._api.permutes import Permuted, permute_tokens, unpermute_tokens
from symmem._api.questions import (
    Explanation,
    check,
    explain,
    failed,
    is_symmetric,
    set_check,
    set_path,
    stats,
)
from symmem._api.rooted import gather, reduce, scatter
from symmem._api.routes import Dispatched, combine_tokens, dispatch_tokens, dispatch_workspace
from symmem._api.scopes import reserve, resume, suspend, trim, use
from symmem._api.stop import request_stop, should_stop
from symmem._api.values import agree, combine, step
from symmem._backend.failures import last_error
from symmem._backend.handles import Handle, handle
from symmem._backend.register import register_with_torch
from symmem._backend.symmetric import use_symm_mem
from symmem._device.pads import CheckedPad, checked_pad
from symmem._rank.group import Group
from symmem._rank.memory import Block
from symmem._rank.work import Work
from symmem._version import __version__
from symmem.errors import (
    AbortedError,
    AbsentError,
    CapturingError,
    ClosedError,
    DeadlockError,
    DivergenceError,
    ForkedError,
    GrowthInCaptureWarning,
    InternalError,
    InvalidError,
    LateWarning,
    LibraryError,
    MemoryUseError,
    MessageEnds,
    MessageError,
    MismatchError,
    OutOfMemoryError,
    OutOfRangeError,
    RankLostError,
    SymmemError,
    TorchError,
    UnsupportedError,
)
from symmem.errors import InterruptedError as InterruptedError
from symmem.errors import TimeoutError as TimeoutError

__all__ = [
    "AbortedError",
    "AbsentError",
    "Block",
    "CapturingError",
    "CheckedPad",
    "ClosedError",
    "DeadlockError",
    "Dispatched",
    "DivergenceError",
    "Explanation",
    "ForkedError",
    "Group",
    "GrowthInCaptureWarning",
    "Handle",
    "InternalError",
    "InvalidError",
    "LateWarning",
    "LibraryError",
    "MemoryUseError",
    "MessageEnds",
    "MessageError",
    "MismatchError",
    "OutOfMemoryError",
    "OutOfRangeError",
    "Permuted",
    "RankLostError",
    "SymmemError",
    "TorchError",
    "UnsupportedError",
    "Work",
    "__version__",
    "agree",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_v",
    "all_gather_v_list",
    "all_reduce",
    "all_reduce_rms_norm",
    "all_reduce_rms_norm_fp8",
    "all_to_all",
    "all_to_all_single",
    "alloc",
    "attach",
    "barrier",
    "broadcast",
    "check",
    "checked_pad",
    "combine",
    "combine_tokens",
    "detach",
    "dispatch_tokens",
    "dispatch_workspace",
    "empty",
    "empty_like",
    "explain",
    "failed",
    "finalize",
    "forget_stream",
    "full",
    "functional",
    "gather",
    "group",
    "handle",
    "init",
    "irecv",
    "is_initialized",
    "is_symmetric",
    "isend",
    "last_error",
    "library_path",
    "ones",
    "open_world",
    "permute_tokens",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_rms_norm",
    "reduce_scatter_rms_norm_fp8",
    "reduce_scatter_tensor",
    "reduce_scatter_v",
    "request_stop",
    "reserve",
    "resume",
    "scatter",
    "send",
    "set_check",
    "set_path",
    "should_stop",
    "stats",
    "step",
    "suspend",
    "synchronize",
    "trim",
    "unpermute_tokens",
    "use",
    "use_symm_mem",
    "world",
    "zeros",
]


register_with_torch()

_SHADOWING = ["InterruptedError", "TimeoutError"]
"""Public names that Python has, too, so `from symmem import *` leaves them out."""


def __dir__() -> list[str]:
    """List what is public."""
    return sorted([*__all__, *_SHADOWING])
