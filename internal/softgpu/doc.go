// Package softgpu builds a software GPU: C sources that gcc compiles to replacements of
// libcuda.so.1 and libnccl.so.2 with the same binary interface. With them the whole nccl backend
// runs in tests on machines without a GPU, with several devices in one process and in several
// processes.
//
// The software GPU is a test double. It behaves as the real libraries do, including their mistakes:
// streams are asynchronous, a collective over windows adds a peer's base and this rank's own
// offset, and calls wait forever for a missing rank. A program that works on it may fail on GPUs,
// and its speed means nothing. Only tests may import this package. README.md describes its
// behavior, its environment variables, and what is not emulated.
//
// Each allocation of device memory is a memfd, mapped where the program requests. Each stream is a
// thread with a queue, and captured work becomes a graph of the same units of work. The kernels of
// package kernels are compiled for the processor, and their threads run as coroutines on the
// stream's thread. The ranks of a communicator share a memfd of the process that created the unique
// ID, which they open through /proc, so that no name remains. The interfaces follow cuda.h (CUDA 12
// and 13), nccl.h (2.27 to 2.30) and the behavior observed on GPUs with NCCL 2.28.9.
package softgpu
