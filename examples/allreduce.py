"""Sums a vector over all ranks, without GPUs. Start it with symmem launch or torchrun."""

import torch.distributed as dist

import symmem

dist.init_process_group("gloo")  # without GPUs
symmem.init(backend="host")

x = symmem.full((1 << 18,), dist.get_rank() + 1.0)  # at the same place on every rank
symmem.all_reduce(x)  # the arguments of torch.distributed
print("rank", dist.get_rank(), "sum", x[0].item())

del x
symmem.finalize()
dist.destroy_process_group()
