// Package softgpu builds a software GPU for tests: libcuda.so.1 and libnccl.so.2, compiled from C
// with gcc, replace NVIDIA's CUDA driver and NCCL. The nccl backend runs without a GPU if
// SYMMEM_CUDA and SYMMEM_NCCL contain the paths that Build returns. A program that works on the
// software GPU may still fail on a real one.
//
// A process has several devices. Device memory is a memfd. A stream is a CPU thread that runs the
// threads of kernels as coroutines. The kernels are those of package kernels, compiled for the CPU.
//
// The interfaces are those of cuda.h (CUDA 12 and 13) and nccl.h (2.27 to 2.30). The behavior is
// that of NCCL 2.28.9. The sources are in src/abi (C interface), src/cuda (driver), src/nccl
// (collectives) and src/gpu (the device as kernels see it).
//
// # Behavior
//
// Memory and kernels:
//
//   - Copying or filling memory that the device cannot access causes error 700 (illegal access).
//     The error is permanent for the CUDA context.
//   - The CPU can access any memory that a device can access.
//   - cuModuleLoadData accepts any nonempty image. Every module contains all kernels. As in CUDA,
//     loading a kernel waits until no other kernel of the process runs on the device.
//   - softgpu_runs(name), an additional function of libcuda.so.1, returns how often the process has
//     started a kernel.
//   - Unsupported functions return code 801.
//   - Stream captures follow CUDA's rules for modes, threads, joined streams and forbidden calls
//     (codes 900 to 908).
//
// Collectives on windows (memory registered on all ranks):
//
//   - They gather any type and reduce f32, f16 and bf16. The precision and the order of additions
//     depend on the emulated NCCL version.
//   - Ranks register windows in the same order. Registering different sizes returns code 1 on all
//     ranks. Registering during a capture returns code 1 and invalidates the capture.
//   - A buffer that extends past its allocation causes error 700. So does launching a graph that
//     uses a deregistered window.
//
// Collectives on other memory:
//
//   - They copy through shared memory. As in NCCL, a send buffer causes error 700 if its last
//     4-byte word extends past its allocation.
//   - As in NCCL, a captured collective may write to memory that an older graph captured at the
//     same addresses, unless NCCL_GRAPH_REGISTER is 0.
//
// Ranks wait for a missing rank until ncclCommAbort. Destroy, finalize and abort wait for graphs.
// Abort also waits for all work on the device, and meanwhile blocks other calls in the same CUDA
// context, except queries.
//
// # Kernels
//
// src/gpu/device.h replaces the header of the same name in package kernels. A device runs at most
// 2048 warps at the same time. A GPU thread has a stack of 16 KiB and is not preempted: it runs
// until it waits for its warp or block, returns, or calls dev::pause. A kernel that polls memory
// without dev::pause never finishes.
//
// An access within an aligned line of 128 bytes is atomic. Misaligned accesses kill the process.
// Arithmetic follows GPUs: no fused multiply-add, rounding to nearest even, the NaNs 0x7fffffff
// (32 bits) and 0x7fff (16 bits), and minimum and maximum as in IEEE 754-2019.
//
// # Environment
//
// Set these variables before the process starts, or with setenv of libc. Parentheses contain
// defaults.
//
//   - SOFTGPU_DEVICES: number of devices (4). CUDA_VISIBLE_DEVICES selects some of them by number.
//   - SOFTGPU_MEMORY: bytes of memory per device and process (8 GiB).
//   - SOFTGPU_LAG: delay in microseconds of each operation on a stream (0).
//   - SOFTGPU_NETWORK: microseconds per KiB that a call sends between ranks with different
//     NCCL_HOSTID (0).
//   - SOFTGPU_LINK: links between devices (NVLink). "pcie" has no native atomics, "none" no peer
//     access.
//   - SOFTGPU_FABRIC=1: supports fabric handles, which otherwise return code 800.
//   - SOFTGPU_ORDER=down: runs threads, warps and blocks in descending order.
//   - SOFTGPU_BLOCKS: number of blocks of a grid that run at the same time (2048 warps).
//   - SOFTGPU_NCCL: version that ncclGetVersion returns (22809).
//   - SOFTGPU_WINDOWS: with "null", registrations return NULL windows. With "masked", collectives
//     ignore windows.
//   - SOFTGPU_DEAF=1: window kernels ignore an abort, as in NCCL 2.27.3 to 2.30.7. Abort blocks no
//     other calls.
//   - SOFTGPU_ENDLESS=1: ncclCommDestroy never returns, as in NCCL if a rank dies meanwhile.
//   - SOFTGPU_FAIL=function:n[:code],...: makes the nth call of a function fail. For
//     ncclCommGetAsyncError, code is the result that it reports.
//   - NCCL_HOSTID: ranks with different values act as if on different machines, and get NULL
//     windows.
//   - NCCL_WIN_ENABLE=0, NCCL_CUMEM_ENABLE=0: registrations return NULL windows.
//   - NCCL_MULTI_RANK_GPU_ENABLE=1: from version 2.30 on, ranks may share a device. Otherwise,
//     initialization returns code 5.
//   - NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS, NCCL_DEBUG_FILE: with subsystem TUNING, rank 0 logs the
//     path of each call.
//
// # Limits
//
// Not emulated:
//
//   - kernels of other packages, shared memory, cooperative launches, multicast, memory pools,
//     managed memory, contexts other than the primary one
//   - time: cuEventElapsedTime measures CPU time
//   - NCCL's LL kernels, which permit different offsets in a window for small messages
//   - error 700 for illegal accesses by the CPU, or by kernels outside windows, which kill the
//     process
//   - ncclCommSplit, shrink, grow, revoke, ncclMemAlloc, user-defined reductions, fp8,
//     one-sided calls, ncclCommInitAll
//   - several machines: all ranks must share one /proc
//   - errors after a peer fails: as in NCCL over NVLink, there are none
package softgpu
