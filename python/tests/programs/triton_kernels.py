"""Compiles kernels that use checked signals, and those of the example, without a GPU."""

from __future__ import annotations

import runpy
import sys
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import symmem.triton as checked


@triton.jit
def every(pad, source, target, width: tl.constexpr):  # type: ignore[no-untyped-def]
    """Calls every primitive."""
    block = tl.program_id(0)
    at = block * width + tl.arange(0, width)
    if checked.barrier(pad, block, 1):
        values = tl.load(source + at)
        checked.arrive(pad, block, 2)
        if checked.wait(pad, block, 2):
            checked.put(pad, 1, block, target + at, values, site=3)
            if checked.wait_signal(pad, 1, block, 3, take=False):
                found = tl.load(target + at)
                if checked.unchanged(pad, 1, block, 3, take=False):
                    tl.store(source + at, found)
    checked.signal(pad, 1, 5, 3)
    checked.wait_signal(pad, 1, 5, 3)
    checked.unchanged(pad, 1, 5, 3)


def compile_for(capability: int, kernel: Any, **parameters: str | int) -> int:
    """Compile a kernel. Parameters are types or constants. Return the size of the object."""
    constants = {name: value for name, value in parameters.items() if not isinstance(value, str)}
    types = {n: "constexpr" if n in constants else value for n, value in parameters.items()}
    source = ASTSource(fn=kernel, signature=types, constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    return len(made.asm["cubin"])


def main() -> None:
    """Compile for several GPUs."""
    example = runpy.run_path(sys.argv[1])
    for capability in (80, 90, 100):
        assert compile_for(capability, every, pad="i64", source="*fp32", target="*fp32", width=1024)
    assert compile_for(90, example["finish"], pad="i64", chunks=16, rank=0, size=2)
    assert compile_for(
        90,
        example["all_gather_matmul"],
        **{"pad": "i64", "peers": "i64", "a": "*bf16", "b": "*bf16", "c": "*bf16"},
        **{"n": 4096, "k": 2048, "rows": 2048, "chunks": 16, "rank": 0, "size": 2},
        **{"tile_m": 128, "tile_n": 128, "tile_k": 64},
    )
    print("END")


if __name__ == "__main__":
    main()
