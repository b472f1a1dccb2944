// Package doctor reports whether symmem can run on a machine and, if not, how to fix the problem.
//
// The package separates collecting facts from judging them. The Inspect functions query the system
// and return facts as plain data, which can be encoded. They never fail, because a failed query is
// also a fact. Examine turns Facts into a Report without querying the system, so that tests can
// examine a machine with eight GPUs on a machine without any.
//
// The package uses NVML if it is installed. Functions and constants are those of nvml.h in CUDA
// 12.9.
package doctor
