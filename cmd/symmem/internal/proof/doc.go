// Package proof determines from NCCL's log which kernels NCCL used. NCCL's interface does not
// report them, and a buffer in a window does not imply a window kernel.
//
// A Recorder makes NCCL write its log to a file, which Read parses; Log.Prove returns the choices
// for the calls of a program. Only rank 0 of a communicator logs (from 2.28 on), so it
// is the rank to ask. A call is logged when it is launched, so a call captured into a graph is
// logged once, not with each replay.
//
// # Lines
//
// The lines are those of the tags 2.27.3 to 2.30.7 of NCCL, printed with the subsystem TUNING from
// src/enqueue.cc, src/scheduler/symmetric_sched.cc and src/ce_coll.cc, after a prefix that ends
// with "NCCL INFO" (src/debug.cc):
//
//	AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_AGxLL_R nchannels 4 nthreads 512 nWorks 1
//	AllGather [Copy Engine]: 4096 Bytes -> cudaMemcpy
//	AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}
//
// 2.27 omits nWorks, and logs on all ranks. Bytes are the count that the call was given
// times the size of an element: one rank's part of an AllGather or a ReduceScatter. Calls that are
// combined by an NCCL group share a line with the sum of their bytes.
package proof
