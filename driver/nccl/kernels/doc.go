// Package kernels contains symmem's GPU kernels for collectives (the direct path) and messages.
// Their CUDA C++ source is in the folder src. docs/design/direct.md and
// docs/design/direct-kernels.md give the reasons for their design.
//
// # Kinds of kernels
//
// Line kernels copy data through exchange memory (one block of GPU memory per rank) in lines of 128
// bytes, as NCCL's LL128 protocol does. Each line has a flag that identifies the call. A rank that
// sees the flag has also received the line's data, so no barrier is needed. Each warp of a basic
// line kernel handles at most one chunk of lines. In wide kernels, each thread moves 16 bytes
// instead of 8. Unrolled kernels, for sums of 2 ranks, send two chunks per warp.
//
// Bulk kernels read and write the peers' buffers directly, between two barriers. They are used for
// large data in symmetric buffers. Other large reductions are split into pieces, each of which is a
// launch of a line kernel and counts as a call.
//
// Norm kernels run a whole norm. A block exchanges its rows in lines with the other ranks, and
// keeps each row in shared memory. If that does not fit or is slower, a local kernel after an
// all-reduce kernel computes the norm.
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
// The kernels with the suffix _any are called generic kernels. docs/reference/deterministic.md
// defines the result of every kernel.
//
// # Calls
//
// In every call, each rank sends a digest of its call to every other rank, in a header next to the
// data. If a peer has launched a different call, the kernel fails. Since every rank waits for all
// headers, no rank is ever two calls ahead, so two alternating halves of exchange memory suffice.
// Calls of one group must not overlap on a GPU: they would have the same epoch (call number), and
// identical calls would read each other's data. Package nccl serializes them.
//
// # After a fault
//
// After its first fault, a rank neither sends nor receives data, because its input may be wrong.
// All bits of a failed call's output are set. This rank never overwrites them, but a late peer may.
// docs/reference/failures.md describes what users see.
//
// # Progress
//
// Blocks wait for blocks of other ranks, never for blocks of their own grid. All ranks launch grids
// of the same size, which can be resident as a whole on a GPU that runs nothing else. A test checks
// Launch.resident against the registers that the objects use.
//
// # Objects
//
// make.sh compiles the sources with NVRTC, which needs no GPU. The objects are committed and
// embedded, and a test checks that they match the sources.
//
//	sm_80        8.0, 8.6, 8.9
//	sm_90        9.0
//	sm_100       10.0, 10.3
//	sm_120       12.0, 12.1
//	compute_90   PTX for all later generations, which the driver compiles at the first Connect
package kernels
