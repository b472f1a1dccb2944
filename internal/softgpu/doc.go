// Package softgpu builds a software GPU for tests. It compiles C sources with gcc to replacements
// for libcuda.so.1 and libnccl.so.2, which have the same binary interface. A test that sets
// SYMMEM_CUDA and SYMMEM_NCCL to the paths that Build returns can run the whole nccl backend
// without a GPU. A program that works on the software GPU may still fail on a real one.
//
// Each allocation of device memory is a memfd, mapped where the program requests it. Each stream is
// a thread with a queue. The kernels of package kernels are compiled for the CPU, and their threads
// run as coroutines on the stream's thread. The interfaces follow cuda.h (CUDA 12 and 13), nccl.h
// (2.27 to 2.30) and the behavior observed on GPUs with NCCL 2.28.9. src/abi contains the C
// interface, src/cuda the driver, src/nccl the collectives, and src/gpu the device as kernels see
// it.
//
// # Behavior
//
//   - Copies and fills of memory to which the stream's device has no access cause error 700
//     (illegal access), which is permanent for the CUDA context. The CPU can read all memory that
//     any device can access.
//   - cuModuleLoadData accepts any image and finds kernels by name. The call that loads a kernel
//     waits until no other kernel of the process runs on the device.
//   - Captures follow CUDA's rules for modes, threads, joined streams and forbidden calls (codes
//     900 to 908). A wait in a graph waits for the last record of the event before the launch.
//   - Collectives outside windows (memory registered on all ranks) copy through shared memory. NCCL
//     reads whole words of 4 bytes, so a send buffer whose last word extends past its allocation
//     causes error 700.
//   - A captured collective outside windows keeps using the output memory of the first graph that
//     was captured at the same addresses, even if other memory is mapped there now. The
//     communicator forgets the memory of destroyed graphs in every 11th group of calls.
//     NCCL_GRAPH_REGISTER=0 prevents this.
//   - Collectives on windows reduce f32, f16 and bf16 if the emulated NCCL version does so, and
//     gather any type. They add in the order of ranks, and add 16-bit types in float32.
//   - Init, the first collective, registrations and kernels wait for a missing rank until
//     ncclCommAbort. Destroy, finalize and abort wait for graphs. Abort waits for all work on the
//     device. Until that has ended, it blocks other calls in the same context, except queries.
//   - The first windows of all ranks belong together, as do the second windows, and so on. If their
//     sizes differ, every rank gets code 1. A registration during a capture returns code 1 and
//     invalidates the capture. A buffer that extends past its allocation causes error 700, as does
//     the launch of a graph after its window was deregistered.
//   - Unsupported functions return code 801.
//   - softgpu_runs(name) returns how often a kernel has been started in the process.
//
// # Kernels
//
// src/gpu/device.h replaces the header of the same name in package kernels. At most 2048 warps run
// at the same time. Each GPU thread has a stack of 16 KiB, and runs until it waits for its warp or
// block, returns, or calls dev::pause. A kernel that polls memory must call dev::pause, or it never
// finishes.
//
// Accesses to an aligned line of 128 bytes are atomic. Misaligned accesses kill the process.
// Arithmetic is that of the device: no fused multiply-add, rounding to nearest even, NaNs
// 0x7fffffff and 0x7fff, and the minimum and maximum of IEEE 754-2019.
//
// # Environment
//
// Set these variables before the process starts, or with setenv of libc. For a variable with a
// number, the default is in parentheses. For others, the code in parentheses is the error that
// calls return if the variable is not set.
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
