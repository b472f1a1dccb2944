"""send, recv, isend and irecv on GPUs: tags, any source, large messages in both directions."""

from __future__ import annotations

import random

import common
import torch
import torch.distributed as dist
from common import DEVICE, MIB, RANK, SIZE, attempt, verdict

import symmem

NEXT, BEFORE = (RANK + 1) % SIZE, (RANK - 1) % SIZE


def pattern(seed: int, count: int) -> torch.Tensor:
    """Return numbers that other ranks can also compute."""
    return (torch.arange(count, device=DEVICE) * 7 + seed * 13) % 251


def both_directions() -> None:
    """Send before receiving, on one stream, far more than the channel between two GPUs holds."""
    ok = True
    for count in (1, 1000, MIB, 8 * MIB):
        got = torch.empty(count, dtype=torch.int64, device=DEVICE)
        symmem.send(pattern(RANK, count), NEXT)
        symmem.recv(got, BEFORE)
        ok = ok and torch.equal(got, pattern(BEFORE, count))
    verdict("both directions up to 64 MiB", ok)


def tags_and_any_source() -> None:
    """Receive by tag in another order than that of the sends, and from any source."""
    draw = random.Random(1)
    tags = list(range(20))
    for tag in tags:
        symmem.send(pattern(100 * RANK + tag, 10 + tag), NEXT, tag=tag)
    draw.shuffle(tags)
    ok = True
    for tag in tags:
        got = torch.empty(10 + tag, dtype=torch.int64, device=DEVICE)
        symmem.recv(got, BEFORE, tag=tag)
        ok = ok and torch.equal(got, pattern(100 * BEFORE + tag, 10 + tag))
    verdict("tags in another order", ok)
    if RANK > 0:
        symmem.send(pattern(RANK, 5), 0, tag=7)
    else:
        found = []
        for _ in range(SIZE - 1):
            got = torch.empty(5, dtype=torch.int64, device=DEVICE)
            source = symmem.recv(got, tag=7)
            ok = ok and torch.equal(got, pattern(source, 5))
            found.append(source)
        ok = ok and sorted(found) == list(range(1, SIZE))
    verdict("any source", ok)


def works_and_streams() -> None:
    """Overlap messages on several streams with other work and collectives on the current one."""
    # The first launch of a kernel loads it and waits for all streams, so each kernel runs once
    # here.
    total = torch.ones(4096, device=DEVICE)
    symmem.all_reduce(total.fill_(1))
    torch.equal(total, pattern(0, 4096))
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(3)]
    works, expected = [], []
    for i in range(30):
        with torch.cuda.stream(streams[i % 3]):
            got = torch.empty(1000 + i, dtype=torch.int64, device=DEVICE)
            works.append(symmem.irecv(got, BEFORE, tag=i))
            expected.append((got, pattern(100 * BEFORE + i, 1000 + i)))
    total.fill_(1)
    symmem.all_reduce(total)
    for i in reversed(range(30)):
        with torch.cuda.stream(streams[(i + 1) % 3]):
            works.append(symmem.isend(pattern(100 * RANK + i, 1000 + i), NEXT, tag=i))
    for work in works:
        work.wait()
    torch.cuda.synchronize()
    ok = all(torch.equal(got, want) for got, want in expected)
    verdict("works on three streams", ok and bool((total == SIZE).all()))


def unmatched() -> None:
    """Leave a message unreceived. Closing the group must report it."""
    group = symmem.group(dist.new_group())
    if RANK == 0:
        symmem.send(pattern(0, 3), 1, group, tag=5)
    dist.barrier()
    said = ""
    try:
        group.close()
    except symmem.MessageError as e:
        said = str(e)
    verdict("an unmatched message", ("tag 5" in said) == (RANK == 1), said)


if __name__ == "__main__":
    common.start()
    for part in (both_directions, tags_and_any_source, works_and_streams, unmatched):
        attempt(part.__name__, part)
    common.leave()
