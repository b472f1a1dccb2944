// Package doctor reports whether symmem can run on a machine, what prevents it, and how to fix
// that.
//
// Collecting facts and judging them are separate. Look functions query the system and return
// facts, plain data that can be encoded. They never fail: what they cannot find out is a fact,
// too. Examine turns Facts into a Report without querying anything, so that the report for a
// machine with eight GPUs can be tested on a machine without any.
//
// NVML is used if it is installed. Its functions and numbers are those of nvml.h of CUDA 12.9.
package doctor
