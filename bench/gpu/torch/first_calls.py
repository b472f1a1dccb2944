"""Captures the first call of each operation of a group whose ranks are on two machines.

The machines are simulated (NCCL_HOSTID), and NCCL uses sockets between them. During such a call
NCCL may connect and allocate, which invalidates a capture in PyTorch's default mode, "global".
"""

from __future__ import annotations

import os

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
os.environ |= {
    "NCCL_HOSTID": f"machine-{2 * RANK // SIZE}",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": os.environ.get("INTERFACE", "lo"),
    "SYMMEM_PATH": "plain",
}

import common  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from common import DEVICE, attempt, verdict  # noqa: E402

import symmem  # noqa: E402

COUNT = 1 << 16


def ones(parts: int = 1) -> torch.Tensor:
    """Return a tensor of several parts."""
    return torch.ones(parts * COUNT, device=DEVICE)


OPERATIONS = {
    "all_reduce": lambda g: symmem.all_reduce(ones(), group=g),
    "all_gather": lambda g: symmem.all_gather_into_tensor(ones(SIZE), ones(), group=g),
    "reduce_scatter": lambda g: symmem.reduce_scatter_tensor(ones(), ones(SIZE), group=g),
    "broadcast": lambda g: symmem.broadcast(ones(), 0, group=g),
    "all_to_all": lambda g: symmem.all_to_all_single(ones(SIZE), ones(SIZE), group=g),
}


def captured(name: str, mode: str) -> str:
    """Capture the first call of a new group and replay it."""
    group = dist.new_group(list(range(SIZE)))
    symmem.group(group)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        OPERATIONS[name](group)
    graph.replay()
    torch.cuda.synchronize()
    return "captured and replayed"


def main() -> None:
    """Try all operations in both modes."""
    common.start()
    common.say("NCCL", common.nccl_version())
    for mode in ("thread_local", "global"):
        for name in OPERATIONS:
            which = f"{name}, {mode}"
            attempt(which, lambda: verdict(which, True, captured(name, mode)))  # noqa: B023
    common.leave()


if __name__ == "__main__":
    main()
