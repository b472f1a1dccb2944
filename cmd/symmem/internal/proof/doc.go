// Package proof reads from NCCL's log which kernels NCCL used, because NCCL has no function that
// reports them. NCCL logs a call in a graph when it is captured, not at each replay. In NCCL 2.28
// and newer, only rank 0 of a communicator logs its choices.
//
// The parser accepts these lines of NCCL 2.27.3 to 2.30.7. The size of an AllGather or a
// ReduceScatter is that of one rank's part, and nWorks is the number of calls in the launch.
//
//	AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_AGxLL_R nchannels 4 nthreads 512 nWorks 1
//	AllGather [Copy Engine]: 4096 Bytes -> cudaMemcpy
//	AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}
package proof
