// Package softgpu builds a software GPU. gcc compiles C sources to replacements of libcuda.so.1 and
// libnccl.so.2 with the same binary interface. With the replacements, the whole nccl backend runs
// in tests on machines without a GPU. A test may use several devices in one process and in several
// processes.
//
// The software GPU is a test double. It behaves as the real libraries do, including their mistakes.
// Streams are asynchronous. A collective over windows adds a peer's base and this rank's own
// offset. Calls wait forever for a missing rank. A program that works on the software GPU may fail
// on GPUs, and its speed means nothing. Only tests may import this package. README.md describes its
// behavior, its environment variables, and what is not emulated.
//
// Each allocation of device memory is a memfd, mapped where the program requests. Each stream is a
// thread with a queue. Captured work becomes a graph of the same units of work. The kernels of
// package kernels are compiled for the processor. Their threads run as coroutines on the stream's
// thread. The ranks of a communicator share a memfd of the process that created the unique ID. They
// open it through /proc, so no name remains. The interfaces follow cuda.h (CUDA 12 and 13), nccl.h
// (2.27 to 2.30) and the behavior observed on GPUs with NCCL 2.28.9.
package softgpu
