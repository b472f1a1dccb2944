"""The backend of torch.distributed on GPUs: values against NCCL's, a captured graph, and times.

    torchrun --standalone --nproc-per-node 2 backend.py

prints PASS or FAIL with each check, from rank 0.
"""

import os
import sys

import torch
import torch.distributed as dist

import symmem  # noqa: F401  PyTorch before 2.14 finds the backend when symmem is imported

RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])
failed = False


def check(name: str, good: bool, detail: str = "") -> None:
    """Prints the result of a check of all ranks."""
    global failed
    flags = [None] * SIZE
    dist.all_gather_object(flags, bool(good))
    failed = failed or not all(flags)
    if RANK == 0:
        print("PASS" if all(flags) else f"FAIL {flags}", name, detail, flush=True)


def microseconds(run, count: int = 200) -> float:
    """Returns the mean time of a call in a loop without waits, in us."""
    for _ in range(20):
        run()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1000 / count


def main() -> None:
    """Runs all checks."""
    torch.cuda.set_device(RANK)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    ranks = list(range(SIZE))
    ours = dist.new_group(ranks, backend="symmem")
    theirs = dist.new_group(ranks, backend="nccl")
    for count in (1, 1000, 1 << 20):
        for dtype in (torch.bfloat16, torch.float32, torch.int64):
            x = (torch.arange(count, device="cuda") % 61 + RANK).to(dtype)
            a, b = x.clone(), x.clone()
            dist.all_reduce(a, group=ours)
            dist.all_reduce(b, group=theirs)
            check(f"all_reduce {count} {dtype}", torch.equal(a, b))
    x = torch.arange(SIZE * 1000, device="cuda", dtype=torch.float32) + RANK
    for name, shape in (
        ("all_gather_into_tensor", (SIZE * SIZE * 1000,)),
        ("reduce_scatter_tensor", (1000,)),
        ("all_to_all_single", (SIZE * 1000,)),
    ):
        a, b = (torch.zeros(shape, device="cuda") for _ in range(2))
        getattr(dist, name)(a, x, group=ours)
        getattr(dist, name)(b, x, group=theirs)
        check(name, torch.equal(a, b))
    a = torch.full((1000,), float(RANK), device="cuda")
    dist.broadcast(a, SIZE - 1, group=ours)
    check("broadcast", bool((a == SIZE - 1).all()))
    work = dist.all_reduce(a, group=ours, async_op=True)
    work.wait()
    check("async all_reduce", bool((a == SIZE * (SIZE - 1)).all()))
    y = torch.ones(4096, device="cuda")
    dist.all_reduce(y, group=ours)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(y, group=ours)
    y.fill_(RANK + 1)
    graph.replay()
    torch.cuda.synchronize()
    check("captured all_reduce", bool((y == SIZE * (SIZE + 1) / 2).all()))
    for count in (512, 1 << 15, 1 << 19):
        z = torch.zeros(count, device="cuda", dtype=torch.bfloat16)
        own, other = (
            microseconds(lambda z=z, g=g: dist.all_reduce(z, group=g)) for g in (ours, theirs)
        )
        check(f"time {2 * count} bytes", True, f"symmem {own:.1f} us, nccl {other:.1f} us")
    net = torch.nn.Linear(256, 256, device="cuda")
    losses = []
    for group in (ours, theirs):
        torch.manual_seed(1)
        net = torch.nn.Linear(256, 256, device="cuda")
        model = torch.nn.parallel.DistributedDataParallel(net, [RANK], process_group=group)
        best = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(5):
            torch.manual_seed(100 * step + RANK)
            loss = model(torch.randn(32, 256, device="cuda")).square().mean()
            best.zero_grad()
            loss.backward()
            best.step()
        losses.append(loss.item())
    check("DDP has NCCL's loss", losses[0] == losses[1], str(losses))
    dist.destroy_process_group()
    sys.exit(failed)


main()
