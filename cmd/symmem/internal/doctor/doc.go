// Package doctor reports whether symmem can run on a machine and, if not, how to fix the problem.
//
// The package separates collecting facts from judging them. Functions named LookAt or Inspect query
// the system and return facts as plain data, which can be encoded. They never fail, because a
// failed query is a fact, too. Examine turns Facts into a Report without querying the system, so
// tests can examine a machine with eight GPUs on a machine without any.
//
// Doctor uses NVML if it is installed. The functions and numbers match nvml.h of CUDA 12.9.
package doctor
