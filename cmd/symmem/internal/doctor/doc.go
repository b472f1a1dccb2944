// Package doctor reports whether symmem can run on a machine and, if not, how to fix the problem.
//
// The Inspect functions query the system and return facts, one of which can be that a query failed.
// Examine turns Facts into a Report without querying the system, so that tests need no GPUs.
//
// A window is memory that NCCL has registered on all ranks of a group. A collective takes one of
// several paths: the window path (NCCL's kernels over windows), the plain path (NCCL without
// windows) or the direct path (symmem's kernels over NVLink).
package doctor
