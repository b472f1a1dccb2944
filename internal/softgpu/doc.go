// Package softgpu builds a software GPU. gcc compiles C sources to replacements of libcuda.so.1 and
// libnccl.so.2 with the same binary interface. With the replacements, the whole nccl backend runs
// in tests on machines without a GPU. A test may use several devices in one process and in several
// processes.
//
// The software GPU is a test double. It behaves as the real libraries do, including their mistakes.
// Streams are asynchronous. A collective over windows adds a peer's base and this rank's own
// offset. Calls wait forever for a missing rank. A program that works on the software GPU may fail
// on GPUs, and its speed means nothing. Only tests may import this package.
//
// Each allocation of device memory is a memfd, mapped where the program requests. Each stream is a
// thread with a queue. Captured work becomes a graph of the same units of work. The kernels of
// package kernels are compiled for the processor. Their threads run as coroutines on the stream's
// thread. The ranks of a communicator share a memfd of the process that created the unique ID. They
// open it through /proc, so no name remains. The interfaces follow cuda.h (CUDA 12 and 13), nccl.h
// (2.27 to 2.30) and the behavior observed on GPUs with NCCL 2.28.9.
//
// Build compiles the libraries. A test then sets SYMMEM_CUDA and SYMMEM_NCCL to their paths.
// Objects are cached in ~/.cache/symmem-softgpu by a digest of sources, flags and compilers, until
// they were not used for a week. src/abi has the C interface, src/cuda the driver, src/nccl the
// collectives, src/gpu the device as kernels see it. The second library links to the first by
// soname, so a process that has loaded NVIDIA's libcuda.so.1 cannot load it.
//
// # Behavior
//
//   - Copies and fills without access for the stream's device are error 700, which is permanent for
//     the context. The CPU may read what any device may access.
//   - Everything on streams is asynchronous except copies of pageable memory, as in CUDA.
//   - cuModuleLoadData takes any image and finds kernels by name. A kernel is loaded at its first
//     launch or by cuFuncLoad, and then waits until no other kernel of the process runs on the
//     device, as CUDA may.
//   - Captures follow CUDA's rules for modes, threads, joined streams and forbidden calls (codes
//     900 to 908). Branches of a graph run concurrently. A launch makes an event mark its node; a
//     wait is for the mark at the time of the launch (seen on an H100).
//   - The process that made the unique id must live until all ranks have connected.
//   - The plain path copies through shared memory. A send buffer whose last 4-byte word is not
//     inside its allocation is error 700, because NCCL reads whole words.
//   - The window path adds f32, f16 and bf16 (all-gather: any type) if that NCCL has them, in the
//     order of ranks, 16-bit types in float32.
//   - Init, the first collective, registrations and kernels wait for a missing rank until
//     ncclCommAbort. Destroy, finalize and abort wait for graphs. Abort also waits for all work of
//     the device, and meanwhile blocks other calls in that context except queries (seen on an
//     H100).
//   - Windows pair by position. Different sizes are code 1 on every rank. A registration during a
//     capture is code 1 and loses the capture (before 2.30.7). A buffer past its allocation, or a
//     graph whose window is gone, is an illegal access.
//   - Unsupported entry points return code 801.
//   - softgpu_runs(name) counts how often a kernel has begun in the process, so that tests can see
//     which kernels a call takes.
//
// # Kernels
//
// src/gpu/device.h replaces the header of the same name in package kernels, whose other sources are
// compiled unchanged. A kernel takes one structure. A launch runs on its stream's thread, with at
// most 2048 warps at once. Each GPU thread has 16 KiB of stack, and runs until it waits for its
// warp or block, ends, or calls dev::pause. A kernel that polls memory without dev::pause never
// ends. Each round of the scheduler runs every thread, in ascending order unless
// SOFTGPU_ORDER=down.
//
// A line of 128 bytes is atomic: its last word is written last and read first. Misaligned lines and
// accesses end the process. Arithmetic is that of the device: no contraction, round to nearest
// even, NaN 0x7fffffff and 0x7fff, IEEE 754-2019 minimum and maximum.
//
// # Environment
//
// Set these variables before the process starts, or through libc's setenv.
//
//   - SOFTGPU_DEVICES: number of devices (4). CUDA_VISIBLE_DEVICES selects by number.
//   - SOFTGPU_MEMORY: bytes of each device, counted for each process (8 GiB).
//   - SOFTGPU_LAG: microseconds before each work of a stream runs (0).
//   - SOFTGPU_LINK: reported links (NVLink). "pcie" has no native atomics, "none" no peer access.
//   - SOFTGPU_FABRIC=1: fabric handles, as with an IMEX channel (code 800).
//   - SOFTGPU_ORDER=down: threads, warps and blocks in descending order.
//   - SOFTGPU_BLOCKS: blocks of a grid that fit at once (2048 warps).
//   - SOFTGPU_NCCL: version that ncclGetVersion returns (22809).
//   - SOFTGPU_WINDOWS: "null" makes registration return a NULL window, "masked" windows that no
//     call uses.
//   - SOFTGPU_DEAF=1: window kernels ignore an abort, as NCCL's (2.27.3 to 2.30.7), and abort does
//     not hold up other calls.
//   - SOFTGPU_FAIL=entry:call[:code],...: that call of an entry point fails, counted from 1. For
//     ncclCommGetAsyncError the code is its result.
//   - NCCL_HOSTID: different values mean different machines, with NULL windows.
//   - NCCL_WIN_ENABLE=0, NCCL_CUMEM_ENABLE=0: NULL windows.
//   - NCCL_MULTI_RANK_GPU_ENABLE=1: from 2.30, ranks may share a device (code 5).
//   - NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS, NCCL_DEBUG_FILE: with TUNING, rank 0 logs the path of
//     each call.
//
// # Not emulated
//
//   - kernels other than ours, shared memory, cooperative launches, multicast, memory pools,
//     managed memory, contexts other than the primary one
//   - time: cuEventElapsedTime measures the CPU
//   - LL kernels, which hide misplaced buffers in small messages: here the sums are wrong at any
//     size
//   - illegal accesses of the CPU, and of kernels to unmapped plain buffers: they end the process
//   - ncclCommSplit, shrink, grow, suspend, revoke, ncclMemAlloc, user-made reductions, fp8,
//     one-sided calls, ncclCommInitAll; several machines: all ranks must share one /proc
//   - errors for faults of peers, which NCCL does not see over NVLink either
package softgpu
