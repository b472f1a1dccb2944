"""Tests checked pads on real processes."""

from __future__ import annotations

import ctypes as c
import sys
from pathlib import Path

import pytest
from conftest import Checks, Start, run_checks
from processes import SOURCE, run
from test_raw import names

from symmem._device import header
from symmem._device.queued import MODULE

pytestmark = pytest.mark.library


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def checks(request: pytest.FixtureRequest) -> Checks:
    return run_checks("checked_pads.py", request.param)


@pytest.mark.parametrize("name", names("checked_pads.py"))
def test_checked_pads(checks: Checks, name: str) -> None:
    checks.verify(name)


def test_a_killed_rank_is_named(start: Start) -> None:
    *survivors, killed = start("checked_pads.py", 3, "killed")
    assert killed.code == -9, killed
    for result in survivors:
        assert (result.code, result.out) == (0, "END [2] True True\n"), result


KERNEL = b"""
#include <symmem_device.cuh>
extern "C" __global__ void kernel(const void* pad, int* out) {
  symmem::arrive(pad, blockIdx.x, 1);
  bool ok = symmem::wait(pad, blockIdx.x, 1) && symmem::barrier(pad, blockIdx.x, 2);
  ok = ok && symmem::mark(pad, 1, 3, 4);
  if (ok) symmem::signal(pad, 1, 3, 4);
  ok = ok && symmem::peek_signal(pad, 1, 3, 4) && symmem::peek_unchanged(pad, 1, 3, 4);
  ok = ok && symmem::wait_signal(pad, 1, 3, 4);
  *out = ok && symmem::unchanged(pad, 1, 3, 4);
}
"""


def test_the_header_is_what_its_module_writes() -> None:
    assert header.PATH.read_text() == header.text()


@pytest.mark.torch
def test_the_header_compiles() -> None:
    import torch

    folders = [Path(p) for p in sys.path if (Path(p) / "nvidia").is_dir()]
    found = [f for p in folders for f in (p / "nvidia").glob("*/lib/libnvrtc.so.*")]
    if not found:
        assert torch.version.cuda is None, "PyTorch for CUDA contains NVRTC"
        pytest.skip(f"PyTorch {torch.__version__} is for CPUs and has no NVRTC: unsupported")
    nvrtc = c.CDLL(str(found[0]))
    program = c.c_void_p()
    nvrtc.nvrtcCreateProgram(c.byref(program), KERNEL, b"kernel.cu", 0, None, None)
    options = [b"--gpu-architecture=sm_90", b"-I" + str(header.PATH.parent).encode()]
    code = nvrtc.nvrtcCompileProgram(program, len(options), (c.c_char_p * 2)(*options))
    size = c.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, c.byref(size))
    log = c.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert code == 0, log.value.decode()


@pytest.mark.torch
def test_kernels_compile(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton is not installed: unsupported here")
    program = Path(__file__).parent / "programs" / "triton_kernels.py"
    example = SOURCE.parents[1] / "examples" / "all_gather_matmul.py"
    env = {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(SOURCE)}
    done = run(sys.executable, str(program), str(example), env=env)
    assert (done.code, done.out) == (0, "END\n"), done


def test_importing_symmem_does_not_import_triton() -> None:
    words = "import sys, symmem; print('triton' in sys.modules)"
    done = run(sys.executable, "-c", words, env={"PYTHONPATH": str(SOURCE)})
    assert (done.code, done.out) == (0, "False\n"), done


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def queued(request: pytest.FixtureRequest) -> Checks:
    return run_checks("queued.py", request.param)


@pytest.mark.parametrize("name", names("queued.py"))
def test_barriers_and_signals_of_handles(queued: Checks, name: str) -> None:
    queued.verify(name)


@pytest.mark.torch
def test_the_kernels_of_handles_compile(tmp_path: Path) -> None:
    triton = pytest.importorskip("triton", reason="Triton is not installed: unsupported here")
    ptxas = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    source = tmp_path / "kernels.ptx"
    source.write_text(MODULE)
    for architecture in ("sm_80", "sm_90", "sm_100"):
        output = str(tmp_path / "kernels.cubin")
        done = run(str(ptxas), f"-arch={architecture}", str(source), "-o", output)
        assert done.code == 0, done
