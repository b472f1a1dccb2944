// Package kernels contains symmem's GPU kernels for collectives (the direct path) and messages.
// Their CUDA C++ source is in the folder src. docs/design/direct.md and
// docs/design/direct-kernels.md give the reasons for their design.
//
// Line kernels copy data through exchange memory (one block of GPU memory per rank) in lines of 128
// bytes. Each line has a flag that identifies the call. A rank that sees the flag has also received
// the line's data, so no barrier is needed. Wide and unrolled kernels are line kernels for more
// data.
//
// Bulk kernels read and write the peers' buffers directly, between two barriers. They are used for
// large data in symmetric buffers. Other large reductions are split into pieces, each of which is a
// launch of a line kernel and counts as a call. Norm kernels run a whole norm. If that does not fit
// or is slower, a local kernel follows an all-reduce kernel.
//
// # Types and operations
//
//	line_sum, wide_sum,              float32, float16, bfloat16, int32: all but Prod, in the order
//	unrolled_sum, line_two_shot      of ranks; unrolled_sum for 2 ranks, line_two_shot for more
//	bulk_sum, bulk_two_shot
//	wide_any, line_two_shot_any      all types, operations and formulas (driver.Formula), for any
//	bulk_any, bulk_two_shot_any      number of ranks, where the others do not apply
//	line_copy, wide_copy, bulk_copy  copies of any type
//
// The kernels with the suffix _any are called generic kernels.
//
// # Calls
//
// In every call, each rank sends a digest of its call to every other rank, in a header next to the
// data. Since every rank waits for all headers, no rank is ever two calls ahead, so two alternating
// halves of exchange memory suffice. Calls of one group must not overlap on a GPU, because they
// would have the same epoch (call number). Package nccl serializes them.
//
// # Objects
//
// make.sh compiles the sources, without a GPU. The objects are committed and embedded, and a test
// checks that they match the sources.
//
//	sm_80        8.0, 8.6, 8.9
//	sm_90        9.0
//	sm_100       10.0, 10.3
//	sm_120       12.0, 12.1
//	compute_90   PTX for all later generations, which the driver compiles at the first Connect
package kernels
