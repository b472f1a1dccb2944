// Package softgpu builds a GPU of software: C sources that gcc turns into replacements of
// libcuda.so.1 and libnccl.so.2 with the true binary interface. With them the whole nccl backend
// runs in tests on machines without a GPU, with several devices in one process and in several
// processes.
//
// It is a test double. It behaves as the real libraries do, mistakes included: streams are
// asynchronous, a collective over windows adds a peer's base and this rank's own offset, a missing
// rank is waited for forever. That a program works on it is no evidence about GPUs, and its speed
// is no evidence about anything; only tests may import this package. README.md describes its
// behavior, the variables of the environment, and what is not emulated.
//
// Device memory is a memfd for each allocation, mapped where the program says. Each stream is a
// thread with a queue; captured work becomes a graph of the same units of work. Kernels are the
// sources of package kernels, compiled for the processor: their threads are coroutines on the
// stream's thread. The ranks of a communicator meet in a memfd of the process that made the
// unique id, opened through /proc, so nothing has a name that could be left behind. Facts about
// interfaces are from cuda.h (CUDA 12 and 13), nccl.h (2.27 to 2.30) and from what was seen on
// GPUs with NCCL 2.28.9.
package softgpu
