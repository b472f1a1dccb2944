"""A PyTorch program that selects the backend "symmem" by name."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

if tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 14):
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

dist.destroy_process_group()
print("RAN", os.path.dirname(sys.modules["symmem"].__file__ or ""))
