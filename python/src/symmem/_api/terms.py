"""Types of arguments, for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

CheckLevel: TypeAlias = Literal["off", "registration", "every", "default"]
Deterministic: TypeAlias = Literal["any", "ranks", "tree", "rounded-tree"] | bool
PathChoice: TypeAlias = Literal["auto", "plain", "window", "direct", "two-level", "default"]
Backend: TypeAlias = Literal["auto", "nccl", "host"]
ValueOp: TypeAlias = Literal["any", "all", "min", "max", "sum"]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed import ProcessGroup, ReduceOp
    from torch.distributed.device_mesh import DeviceMesh

    from symmem._c.terms import Op
    from symmem._rank.group import Group

    OpLike: TypeAlias = ReduceOp | ReduceOp.RedOpType | Op | None
    WorldLike: TypeAlias = (
        ProcessGroup | DeviceMesh | tuple[DeviceMesh, int | str] | Sequence[int] | str | None
    )
    GroupLike: TypeAlias = Group | WorldLike
