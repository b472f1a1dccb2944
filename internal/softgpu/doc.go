// Package softgpu builds a software GPU for tests. It compiles C sources with gcc to libcuda.so.1
// and libnccl.so.2, which replace NVIDIA's CUDA driver and NCCL. If a test sets SYMMEM_CUDA and
// SYMMEM_NCCL to the paths that Build returns, it can run the whole nccl backend without a GPU. A
// program that works on the software GPU may still fail on a real one.
//
// A process has several devices. Each allocation of device memory is a memfd (a file in memory),
// mapped where the program requests it. Each stream is a thread with a queue. The kernels of
// package kernels are compiled for the CPU. The threads of a kernel run as coroutines on the
// stream's thread.
//
// The interfaces follow cuda.h (CUDA 12 and 13), nccl.h (2.27 to 2.30) and the behavior of GPUs
// with NCCL 2.28.9. src/abi contains the C interface, src/cuda the driver, src/nccl the
// collectives, and src/gpu the device as kernels see it.
//
// # Behavior
//
// Memory and kernels:
//
//   - If a stream's device has no access to memory, copies and fills of the memory cause error 700
//     (illegal access), which is permanent for the CUDA context. The CPU can read all memory that
//     any device can access.
//   - cuModuleLoadData accepts any image, and finds kernels by name. The call that loads a kernel
//     waits until no other kernel of the process runs on the device.
//   - softgpu_runs(name) returns how often a kernel has been started in the process.
//   - Unsupported functions return code 801.
//
// Captures record calls into a graph instead of executing them:
//
//   - They follow CUDA's rules for modes, threads, joined streams and forbidden calls (codes 900 to
//     908). A wait in a graph waits for the last record of the event before the launch.
//
// Collectives use windows (memory registered on all ranks) or other memory:
//
//   - On windows, they reduce f32, f16 and bf16 if the emulated NCCL version does so, and gather
//     any type. They add in the order of ranks, and add 16-bit types in float32.
//   - On other memory, they copy through shared memory. NCCL reads whole words of 4 bytes. If the
//     last word of a send buffer extends past its allocation, the call causes error 700.
//   - On other memory, a captured collective uses the output memory of the first graph that was
//     captured at the same addresses, even if other memory is mapped there now. In every 11th group
//     of calls, the communicator forgets the memory of destroyed graphs. NCCL_GRAPH_REGISTER=0
//     prevents this.
//   - The first windows of all ranks belong together, as do the second windows, and so on. If their
//     sizes differ, every rank gets code 1. A registration during a capture returns code 1 and
//     invalidates the capture. A buffer that extends past its allocation causes error 700, as does
//     the launch of a graph after its window was deregistered.
//   - If a rank is missing, the others wait in the initialization, the first collective,
//     registrations and kernels, until ncclCommAbort.
//   - Destroy, finalize and abort wait for graphs. Abort also waits for all work on the device, and
//     meanwhile blocks other calls in the same context, except queries.
//
// # Kernels
//
// src/gpu/device.h replaces the header of the same name in package kernels. At most 2048 warps run
// at the same time. Each GPU thread has a stack of 16 KiB. It runs until it waits for its warp or
// block, returns, or calls dev::pause. A kernel that polls memory must call dev::pause. Otherwise,
// it never finishes.
//
// Accesses to an aligned line of 128 bytes are atomic. Misaligned accesses kill the process.
// Arithmetic is that of the device: no fused multiply-add, rounding to nearest even, NaNs
// 0x7fffffff and 0x7fff, and the minimum and maximum of IEEE 754-2019.
//
// # Environment
//
// Set these variables before the process starts, or with setenv of libc. The value in parentheses
// is the default. "code N" in parentheses means that calls return this error if the variable is not
// set.
//
//   - SOFTGPU_DEVICES: number of devices (4). CUDA_VISIBLE_DEVICES selects some of them by number.
//   - SOFTGPU_MEMORY: bytes of memory per device, counted separately for each process (8 GiB).
//   - SOFTGPU_LAG: delay of each operation on a stream in microseconds (0).
//   - SOFTGPU_NETWORK: time in microseconds that 1 KiB of a call takes between machines (0).
//   - SOFTGPU_LINK: reported links (NVLink). "pcie" has no native atomics, "none" no peer access.
//   - SOFTGPU_FABRIC=1: supports fabric handles, as with an IMEX channel (code 800).
//   - SOFTGPU_ORDER=down: runs threads, warps and blocks in descending order.
//   - SOFTGPU_BLOCKS: blocks of a grid that fit at the same time (2048 warps).
//   - SOFTGPU_NCCL: version that ncclGetVersion returns (22809).
//   - SOFTGPU_WINDOWS: "null" makes registrations return a NULL window, and "masked" a window that
//     no call uses.
//   - SOFTGPU_DEAF=1: window kernels ignore an abort, as those of NCCL 2.27.3 to 2.30.7 do, and
//     abort does not block other calls.
//   - SOFTGPU_ENDLESS=1: ncclCommDestroy never returns, like NCCL's if a rank dies meanwhile.
//   - SOFTGPU_FAIL=function:call[:code],...: makes one call of a function fail. call is the number
//     of the call, counted from 1. For ncclCommGetAsyncError, code is the result that it reports.
//   - NCCL_HOSTID: different values mean different machines, whose ranks get NULL windows.
//   - NCCL_WIN_ENABLE=0, NCCL_CUMEM_ENABLE=0: registrations return NULL windows.
//   - NCCL_MULTI_RANK_GPU_ENABLE=1: from version 2.30 on, ranks may share a device (code 5).
//   - NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS, NCCL_DEBUG_FILE: with subsystem TUNING, rank 0 logs the
//     path of each call.
//
// # Limits
//
// Not emulated:
//
//   - kernels other than ours, shared memory, cooperative launches, multicast, memory pools,
//     managed memory, contexts other than the primary one
//   - time: cuEventElapsedTime measures CPU time
//   - NCCL's LL kernels, whose sums of small messages are right even if ranks use different offsets
//     in a window
//   - illegal accesses by the CPU, and by kernels to unmapped buffers outside windows: they kill
//     the process
//   - ncclCommSplit, shrink, grow, revoke, ncclMemAlloc, user-defined reductions, fp8,
//     one-sided calls, ncclCommInitAll
//   - several machines: all ranks must share one /proc
//   - errors after a peer fails, which NCCL does not notice over NVLink either
package softgpu
