// Package proof determines from NCCL's log which kernels NCCL used, because NCCL's interface does
// not report them, and a buffer in a window does not imply a window kernel.
//
// A Recorder makes NCCL write its log to a file, Read parses that file, and Log.Prove returns the
// choices for a program's calls. In NCCL 2.28 and newer, only rank 0 of a communicator logs its
// choices. A call is logged when it is launched, and a call captured into a graph is logged once,
// not at each replay.
//
// # Lines
//
// The parser accepts the lines that NCCL 2.27.3 to 2.30.7 print for the subsystem TUNING in
// src/enqueue.cc, src/scheduler/symmetric_sched.cc and src/ce_coll.cc, after a prefix that ends
// with "NCCL INFO" (src/debug.cc):
//
//	AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_AGxLL_R nchannels 4 nthreads 512 nWorks 1
//	AllGather [Copy Engine]: 4096 Bytes -> cudaMemcpy
//	AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}
//
// NCCL 2.27 omits nWorks, and logs on all ranks. The number of bytes is the call's count argument
// multiplied by the size of an element, which is one rank's part of an AllGather or a
// ReduceScatter. Calls that an NCCL group combines share a line with the sum of their bytes.
package proof
