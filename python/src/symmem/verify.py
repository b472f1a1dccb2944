"""Proves that collectives over symmetric tensors of PyTorch give right sums.

    python -m symmem.verify                     # starts the ranks itself
    torchrun --nproc-per-node 4 -m symmem.verify --churn 200 --skew
    python -m symmem.verify --deterministic --cases 40

The table, the JSON and the exit codes are those of the command `symmem verify`: 0 every case
passed; 1 a sum was wrong or ranks differ; 2 it could not run, or not to its end; 128 + n it was
ended by signal n.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import symmem
from symmem import _report
from symmem._c.constants import FORMULAS
from symmem._rank import launch
from symmem._workload import Action, Config, Program, Row, expected, members

if TYPE_CHECKING:
    import torch

NOISE_BLOCKS = 16
NOISE_BYTES = 3 << 20


def parser() -> argparse.ArgumentParser:
    """Describe the flags."""
    p = argparse.ArgumentParser(prog="python -m symmem.verify", description=__doc__)
    p.formatter_class = argparse.RawDescriptionHelpFormatter
    p.add_argument("--ranks", type=_from(1), default=0, help="processes to start (4, or as GPUs)")
    p.add_argument("--cases", type=_from(1), default=8, help="tensors that are live at once")
    p.add_argument("--rounds", type=_from(1), default=2, help="how often the cases are made")
    p.add_argument("--size", type=_size, default=256 << 10, help="float32 elements of a case")
    p.add_argument("--churn", type=_from(0), default=0, help="tensors made and dropped before")
    p.add_argument("--groups", type=_from(1), default=1, help="overlapping groups over one pool")
    p.add_argument("--seed", type=_from(0), default=1, help="where churn and skew draw from")
    p.add_argument(
        "--skew",
        action="store_true",
        help="each rank has tensors of its own, too; with address, drawn segments",
    )
    p.add_argument("--backend", default="auto", choices=["auto", "nccl", "host"])
    p.add_argument("--placement", default="creation", choices=["creation", "address"])
    p.add_argument(
        "--check", default="default", choices=["default", "off", "registration", "every"]
    )
    p.add_argument("--path", help="path of collectives (default $SYMMEM_PATH, else window)")
    p.add_argument(
        "--deterministic",
        nargs="?",
        const="ranks",
        choices=FORMULAS,
        help="compare bits with a formula of reductions, of every type; --path is then auto "
        "unless it is given",
    )
    p.add_argument("--timeout", type=float, default=30.0, help="longest wait for a rank, seconds")
    p.add_argument("--callsites", action="store_true", help="note the lines that make tensors")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    return p


def _from(low: int) -> Any:
    def number(text: str) -> int:
        n = int(text, 0)
        if n < low:
            raise argparse.ArgumentTypeError(f"{n} is below {low}")
        return n

    return number


def _size(text: str) -> int:
    units = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "K": 1000, "M": 1000**2, "G": 1000**3}
    for unit, factor in units.items():
        if text.endswith(unit):
            count: int = _from(1)(text[: -len(unit)])
            return count * factor
    plain: int = _from(1)(text)
    return plain


class Rank:
    """One rank of a verify."""

    def __init__(self, flags: argparse.Namespace, config: Config):
        import torch

        self.torch: Any = torch
        self.flags = flags
        self.program = Program.compose(config)
        self.account: dict[str, Any] = {"divergence": None, "fault": None, "paths": []}
        self.findings: list[dict[str, Any] | None] = [None] * len(self.program.rows)
        self.live: dict[int, torch.Tensor] = {}
        self.noise: list[torch.Tensor] = []
        self.groups: list[symmem.Group | None] = []

    def open(self) -> None:
        """Open symmem, and the overlapping groups over the world's memory."""
        flags = self.flags
        pool: dict[str, Any] = {"placement": flags.placement, "first_segment": 2 << 20}
        options: dict[str, Any] = {"check_interval_ms": -1, "pool": pool}
        if flags.skew and flags.placement == "address":
            # PyTorch orders its memory by addresses. With ours these are in order; scattered they
            # lie as a driver puts segments, which is what "creation" is the cure for.
            options["scatter"] = flags.seed << 1 | 1
        world = symmem.init(
            backend=flags.backend,
            check=None if flags.check == "default" else flags.check,
            path=flags.path,
            timeout=flags.timeout,
            callsites=flags.callsites or None,
            deterministic=flags.deterministic,
            options=options,
        )
        self.draws = random.Random(f"noise {flags.seed} {world.rank}")
        self.world = world
        for k in range(flags.groups):
            ranks = members(k, world.size)
            inside = world.rank in ranks
            name = f"verify {k}"
            made = symmem.group(ranks, domain=world, name=name) if inside and k else None
            self.groups.append(world if k == 0 else made)

    def run(self) -> None:
        """Do all steps, and note how that ended."""
        try:
            for step in self.program.steps:
                self._step(step.action, step.slot, step.elements, step.row)
            symmem.check()
        except symmem.DivergenceError as e:
            self.account["divergence"] = {**e.data.get("divergence", {}), "message": str(e)}
        except symmem.SymmemError as e:
            self.account["fault"] = str(e)
        self.account["findings"] = self.findings

    def _step(self, action: Action, slot: int, elements: int, row: int) -> None:
        if action is Action.MAKE:
            with symmem.use(self.world):
                self.live[slot] = symmem.empty(elements, dtype=self.torch.float32)
        elif action is Action.DROP:
            del self.live[slot]
        elif action is Action.NOISE:
            self._make_noise()
        else:
            at = self.program.rows[row]
            group = self.groups[at.group]
            if group is not None and action is Action.FILL:
                self._fill(self.live[slot], group, at)
            elif group is not None:
                self._reduce(self.live[slot], group, at, row)

    def _fill(self, tensor: torch.Tensor, group: symmem.Group, at: Row) -> None:
        if at.dtype:
            self._typed(tensor, at).copy_(self._part(group, at, group.rank))
        else:
            tensor.fill_(at.value * (group.rank + 1))

    def _typed(self, tensor: torch.Tensor, at: Row) -> torch.Tensor:
        """View as many bytes of a case as its elements take."""
        dtype = getattr(self.torch, at.dtype)
        raw = tensor.view(self.torch.uint8)[: at.elements * dtype.itemsize]
        typed: torch.Tensor = raw.view(dtype)
        return typed

    def _part(self, group: symmem.Group, at: Row, rank: int) -> torch.Tensor:
        """Make what a rank of a group contributes where bits are compared."""
        from symmem import _formula

        dtype = getattr(self.torch, at.dtype)
        return _formula.contributed(dtype, at.seed, rank, group.size, at.elements)

    def _reduce(self, tensor: torch.Tensor, group: symmem.Group, at: Row, row: int) -> None:
        if at.dtype:
            tensor = self._typed(tensor, at)
        path = symmem.explain("all_reduce", tensor, group=group).path
        op: Any = at.op or None
        symmem.all_reduce(tensor, op=op, group=group)
        wrong, most, mean = self._compare(tensor, group, at)
        if path not in self.account["paths"]:
            self.account["paths"].append(path)
        self.findings[row] = {
            "symmetric": symmem.is_symmetric(tensor, group),
            "wrong": wrong,
            "max_diff": most,
            "mean_diff": mean,
        }

    def _compare(
        self, tensor: torch.Tensor, group: symmem.Group, at: Row
    ) -> tuple[int, float, float]:
        """Count wrong elements, and say how far they are off: at most and on average."""
        if at.dtype:
            from symmem import _formula

            parts = [self._part(group, at, rank) for rank in range(group.size)]
            want = _formula.reduced(self.flags.deterministic, at.op, parts)
            return _formula.compared(tensor.cpu(), want)
        value = expected(at.value, group.size)
        wrong = (tensor.double() - value).abs()
        far = int((wrong > 1e-5 * max(value, 1)).sum())
        return far, float(wrong.max()), float(wrong.mean())

    def _make_noise(self) -> None:
        """Make and drop ordinary tensors, in sizes and numbers that no other rank has."""
        if not self.flags.skew:
            return
        for _ in range(self.draws.randrange(4)):
            if len(self.noise) < NOISE_BLOCKS and self.draws.random() < 0.5:
                size = 1 + self.draws.randrange(NOISE_BYTES)
                device = "cpu" if self.world.runtime.device is None else "cuda"
                self.noise.append(self.torch.empty(size, dtype=self.torch.uint8, device=device))
            elif self.noise:
                self.noise.pop(self.draws.randrange(len(self.noise)))

    def head(self, elapsed: float) -> dict[str, Any]:
        """Write what the report begins with."""
        flags = self.flags
        described = symmem.stats()
        return {
            "backend": described["backend"],
            "source": "torch",
            "ranks": described["size"],
            "check": described["check"],
            "placement": flags.placement,
            "path": flags.path,
            "skew": flags.skew,
            "churn": flags.churn,
            "seed": flags.seed,
            "rounds": flags.rounds,
            "groups": flags.groups,
            "elapsed_ms": round(elapsed * 1000, 3),
            **({"deterministic": flags.deterministic} if flags.deterministic else {}),
        }


def gather(account: dict[str, Any], rank: int, ranks: int) -> list[dict[str, Any]]:
    """Exchange accounts through the store of torch.distributed, which outlives every fault."""
    import torch.distributed as dist

    store: Any = dist.distributed_c10d._get_default_store()
    store.set(f"verify/{rank}", json.dumps(account))
    keys = [f"verify/{r}" for r in range(ranks)]
    store.wait(keys, timedelta(seconds=60))
    return [json.loads(store.get(k).decode()) for k in keys]


def leave(rank: int, ranks: int) -> None:
    """Make rank 0 the last one to leave, since it may serve the store."""
    import torch.distributed as dist

    store: Any = dist.distributed_c10d._get_default_store()
    if rank:
        store.set(f"verify/left/{rank}", "yes")
    elif ranks > 1:
        store.wait([f"verify/left/{r}" for r in range(1, ranks)], timedelta(seconds=60))


def run(flags: argparse.Namespace) -> int:
    """Be one rank, and return its exit code."""
    import torch.distributed as dist

    out = launch.take_stdout()
    config = Config(
        cases=flags.cases,
        rounds=flags.rounds,
        elements=flags.size,
        churn=flags.churn,
        groups=flags.groups,
        seed=flags.seed,
        skew=flags.skew,
        exact=bool(flags.deterministic),
    )
    dist.init_process_group("gloo", timeout=timedelta(seconds=max(60, flags.timeout)))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    me = Rank(flags, config)
    me.open()
    begin = time.monotonic()
    me.run()
    head = me.head(time.monotonic() - begin)
    accounts = gather(me.account, rank, ranks)
    report = _report.merge(head, me.program.rows, accounts)
    if rank == 0:
        out.write(_report.as_json(report) + "\n" if flags.json else _report.as_text(report))
        out.flush()
    leave(rank, ranks)
    me.live.clear()
    symmem.finalize(force=True)
    return _report.exit_code(report)


def ranks_to_start(flags: argparse.Namespace) -> int:
    """Choose how many ranks to start: as many as GPUs where there are some, else 4."""
    if flags.ranks:
        return int(flags.ranks)
    import torch

    if flags.backend != "host" and torch.cuda.is_available():
        return int(torch.cuda.device_count())
    return 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    flags = parser().parse_args(given)
    flags.path = flags.path or os.environ.get("SYMMEM_PATH")
    flags.path = flags.path or ("auto" if flags.deterministic else "window")
    try:
        if not launch.launched():
            return launch.start("symmem.verify", given, ranks_to_start(flags))
        return run(flags)
    except KeyboardInterrupt:
        return 130
    except (symmem.SymmemError, ImportError, RuntimeError, ValueError) as e:
        rank = os.environ.get("RANK")
        print(f"[rank {rank}] {e}" if rank else f"symmem.verify: {e}", file=sys.stderr)
        return launch.CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main())
