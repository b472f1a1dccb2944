// Package doctor reports whether symmem can run on a machine and, if not, how to fix the problem.
//
// The Inspect functions query the system and return facts. They never fail, because a failed query
// is also a fact. Examine turns Facts into a Report without querying the system. Therefore, tests
// can examine the facts of a machine with eight GPUs on a machine without GPUs.
//
// A window is memory that NCCL has registered on all ranks of a group. Collectives take one of
// several paths: the window path uses NCCL's kernels over windows, the plain path uses NCCL without
// windows, and the direct path uses symmem's kernels over NVLink.
//
// The package uses NVML if it is installed. Functions and constants are those of nvml.h in CUDA
// 12.9.
package doctor
