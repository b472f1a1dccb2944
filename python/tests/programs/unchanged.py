"""A PyTorch program that selects the backend "symmem" by name."""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist

version = tuple(int(n) for n in torch.__version__.split(".")[:2])
if version < (2, 14):
    import symmem  # noqa: F401 - Before 2.14, PyTorch does not find the backend itself.
else:
    assert "symmem" not in sys.modules
assert dist.is_backend_available("symmem")
dist.init_process_group(sys.argv[1])
rank, size = dist.get_rank(), dist.get_world_size()

tensor = torch.full((1000,), rank + 1.0)
dist.all_reduce(tensor)
assert tensor.eq(size * (size + 1) / 2).all()

gathered = torch.empty(size)
dist.all_gather_into_tensor(gathered, torch.full((1,), float(rank)))
assert gathered.tolist() == list(range(size))

pair = dist.new_group([0, 1], backend="symmem")
if rank < 2:
    dist.broadcast(tensor, 0, group=pair)

if version >= (2, 15):
    # PyTorch attaches its Flight Recorder to every backend.
    dump = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(backend="symmem"))
    recorded = {entry["profiling_name"] for entry in dump["entries"]}
    assert "symmem:all_reduce" in recorded, recorded
dist.destroy_process_group()
print("RAN", os.path.dirname(sys.modules["symmem"].__file__ or ""))
