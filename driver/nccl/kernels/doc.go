// Package kernels contains symmem's GPU kernels for collectives (the direct path) and messages.
// Their CUDA C++ source is in the folder src.
//
// # Kinds of kernels
//
// Line kernels use NCCL's LL128 protocol. They copy data through exchange memory (one block of GPU
// memory per rank) in lines of 128 bytes, each with a flag that identifies the call. Once a rank
// sees the flag, it has also received the data of the line, so no barrier is needed. The buffers
// may be in any memory, but the data must fit into the exchange memory. In the basic line kernels,
// each warp handles at most one chunk of lines. Without a loop, their code is short, which matters
// because each launch has to fetch the code again. Wide kernels handle more chunks: each thread
// moves 16 bytes instead of 8, and a warp sends its next chunk before it waits for the previous
// one. Unrolled kernels, for sums of 2 ranks, send two chunks per warp without a loop.
//
// Bulk kernels read and write the peers' buffers directly, between two barriers. They are used for
// large data in symmetric buffers. If the buffers of a large reduction are not symmetric, the
// reduction is split into pieces, each of which is a launch of a line kernel and counts as a call.
//
// Norm kernels run a whole norm. A block owns whole rows. It exchanges each row in lines with the
// corresponding blocks on the other ranks, adds the residual, and keeps the row in shared memory
// until it is normalized and quantized. All ranks normalize all rows. If the rows do not fit into
// exchange memory, or if there are only a few long rows, the all-reduce is a separate kernel, and a
// local kernel does the rest.
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
// Every kernel computes the same bits on every rank and in every run. Unless the group has another
// formula, reductions start with the value of the first rank and combine the values of the other
// ranks one after the other. They compute 16-bit types in float32, and round the result once. They
// compute all other types in the type itself. Every step is rounded to nearest even, and
// multiplications and additions are not fused. An average is the sum divided by the number of ranks
// (IEEE division; integers wrap and truncate towards zero). If the sum of floats is not finite, it
// is computed again from scaled elements. Subnormal numbers are kept. Minimum and maximum follow
// IEEE 754-2019. If a result is NaN, all its bits except the sign are set.
//
// # Calls
//
// In every call, each rank sends the digest of its call to every other rank, in a header next to
// the data. If a peer has launched a different call, the kernel fails. Since every rank waits for
// the headers of all others, no rank is ever two calls ahead, so two alternating halves of exchange
// memory suffice. Calls of one group must not overlap on a GPU: they would have the same epoch
// (call number), and identical calls would read each other's data. Package nccl serializes them.
//
// Every wait polls the GPU's clock and a word that the host sets to end the wait. A rank's first
// fault is stored in its Report.
//
// # After a fault
//
// After its first fault, a rank neither sends nor receives data, whatever is queued or replayed,
// because its input may be wrong. The fault word and the epoch share the 16 bytes that each block
// reads first, so a check for a fault needs no other load. There are several copies of these 16
// bytes, so that the blocks do not all read the same address. When the host stops the kernels, it
// copies its word to the fault word in the first of these copies, which the header warp of each
// call checks.
//
// The output of a failed call is poisoned: all bits are set, which is NaN in every floating-point
// type. Each warp or block poisons the elements that it would have written, so this rank never
// overwrites poison. If all data has arrived but the header of some rank has not, the header warp
// poisons the first elements of each part, after the warp that writes these elements. Bulk kernels
// also poison the parts of the output that peers write. A late peer may overwrite that poison with
// correct data, but not the poison in the part that this rank writes. (In a broadcast, there is no
// such part.) If the output is also an input, a late peer may read poison. Its integer sums are
// then wrong, and only the fault reveals that.
//
// # Progress
//
// Blocks wait for blocks of other ranks, never for blocks of their own grid. All ranks launch grids
// of the same size, and the whole grid can be resident on every rank's GPU if the GPU runs nothing
// else. (A test checks Launch.resident against the registers that the objects use.) Other work on
// the GPU eventually leaves space for the grid. If not all blocks fit, for example because clients
// of the Multi-Process Service share a GPU, the first blocks still make progress, because they wait
// for the same blocks of other ranks. If ranks launch different calls, the first warp of the first
// block detects that and ends the call. Otherwise the other blocks would wait for each other's
// epochs until the timeout.
//
// A kernel that overlaps with its predecessor in the stream is launched once all blocks of the
// predecessor have started, so its blocks occupy multiprocessors while they wait. Generic kernels
// do not overlap, because each of their blocks occupies a whole multiprocessor. If ranks of one
// process share a GPU, no kernels overlap.
//
// Calls of different groups do not always fit on a GPU at the same time. A GPU with 132
// multiprocessors holds two calls of up to 128 KiB (or with parts of up to 128 KiB), each followed
// by another waiting call. It also holds a larger call together with a call of up to 8 KiB, again
// each followed by another waiting call. If two groups make larger calls at the same time, and
// ranks start them in different orders, the calls may wait for each other until they time out.
//
// A small local kernel is launched before its all-reduce has completed, and its waiting blocks
// occupy up to a quarter of the multiprocessors.
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
//
// Only kernels that wait for their predecessors in the stream (griddepcontrol.wait, on 9.0 and
// later) are launched to overlap, and a test checks the objects for this instruction. Without it, a
// kernel that starts early reads data before it has been written: on an H100, nearly all words.
package kernels
