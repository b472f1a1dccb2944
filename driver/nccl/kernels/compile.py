"""Compiles the kernels with NVRTC, NVIDIA's compiler as a library, which needs no GPU.

    compile.py LIBNVRTC SOURCE ARCHITECTURE OUTPUT

SOURCE lies next to what it includes. ARCHITECTURE is compute_NN for PTX or sm_NN for a cubin. make.sh calls it.
"""

from __future__ import annotations

import ctypes
import gzip
import pathlib
import sys


class CompileError(Exception):
    """What NVRTC says of the sources."""


def compile_kernels(library: str, source: pathlib.Path, architecture: str) -> bytes:
    """Returns the object for an architecture."""
    nvrtc = ctypes.CDLL(library)
    program = ctypes.c_void_p()
    text = source.read_bytes()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"main.cu", 0, None, None)
    options = [b"--gpu-architecture=" + architecture.encode(), b"-I" + str(source.parent).encode(),
               b"--std=c++17", b"-default-device"]
    code = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    if code != 0:
        raise CompileError(output(nvrtc, program, "ProgramLog").rstrip(b"\0").decode())
    return output(nvrtc, program, "PTX" if architecture.startswith("compute") else "CUBIN")


def output(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    """Fetches a result of a program."""
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


def main() -> None:
    """Writes the object, packed by gzip without a date: the same sources give the same bytes."""
    library, source, architecture, out = sys.argv[1:]
    try:
        made = compile_kernels(library, pathlib.Path(source), architecture)
    except CompileError as e:
        sys.exit(str(e))
    pathlib.Path(out).write_bytes(gzip.compress(made, 9, mtime=0))


if __name__ == "__main__":
    main()
