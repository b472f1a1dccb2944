// Package kernels contains symmem's GPU kernels for collectives (the `direct` path) and messages.
//
// # Kernels
//
// There are three families (folder src, CUDA C++).
//
// Line kernels use NCCL's LL128 protocol: they copy data through exchange memory in lines of 128
// bytes, each with a flag that identifies the call. A rank that sees the flag has the data of the
// line, so a message crosses the link once, and no barrier is needed. Buffers may be any memory.
// Line kernels handle data that fits into the exchange memory. If each warp of the grid has at most
// one chunk of lines, there is no loop, which keeps the code short: each launch fetches it anew.
// Wide kernels handle more chunks: a thread moves 16 bytes instead of 8, and a warp sends its next
// chunk before it waits for the previous one. Unrolled kernels, for sums of 2 ranks, send two
// chunks per warp and need no loop either.
//
// Bulk kernels read and write the peers' buffers in place, between two barriers. The buffers are
// symmetric and the messages large. A large reduction whose buffers are not symmetric goes through
// exchange memory in pieces. Each piece is a separate launch of a line kernel and counts as a call.
//
// Local kernels run the part of a norm after its all-reduce: they add the sums to a residual and
// normalize each row of it. One block handles a row. So a norm consists of two kernels that are
// launched together. A single kernel was slower: at least 8 us instead of 5 for a row of 4096 on 4
// H200. All ranks normalize all rows, with identical results, since the squares of a row are added
// in the same order everywhere. A local kernel reads the fault word that the all-reduce sets if it
// fails, and then poisons its output. For many rows of up to 8192 elements there is a kernel with
// fewer registers, so that two rows fit on a multiprocessor.
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
// The four with the suffix _any are called kernels of any reduction below.
//
// Reductions start with the value of the first rank and combine one rank after the other, 16-bit
// types in float32, all others in their own type. Every step is rounded to nearest even, nothing is
// fused into a multiply-add, and the result of a 16-bit type is rounded once. So every rank gets
// the same bits, in every run, from every kernel. An average is the sum divided by the number of
// ranks (IEEE division; integers wrap and truncate towards zero). If the sum of floats is not
// finite, a function that common calls do not load computes it again from scaled elements.
// Subnormal numbers are kept. Minimum and maximum follow IEEE 754-2019. A NaN in a result has all
// bits set but the sign.
//
// # Calls
//
// In every call each rank sends each other rank the digest of its call, in a header next to the
// data. A kernel whose peers have launched a different call fails instead of mixing the two. And
// since every rank waits for a header of every other, no rank is ever two calls ahead: two
// alternating halves of exchange memory suffice. If two calls of one group overlapped on a GPU,
// they would have the same epoch, and two equal calls would read each other's data. Package nccl
// serializes them, on all streams, in branches of a capture, and in replays.
//
// Every wait polls the clock of the GPU and a word that the host sets to end the wait. The first
// fault of a rank is recorded in its Report.
//
// # After a fault
//
// After its first fault a rank neither sends nor receives, whatever is queued or replayed, since
// its input may be wrong. The fault word and the epoch share the 16 bytes that each block reads
// first, so a check for a fault needs no other load. When the host ends the kernels, it copies its
// own word to the first of these fault words; the header warp also checks that one. Kernels load
// their input before they know whether there was a fault.
//
// The output of a failed call is poisoned: all bits are set, which is NaN in every floating-point
// type. Each warp or block poisons the elements that it would have written, so this rank never
// overwrites poison. If all data have arrived, but not the header of some rank, the header warp
// poisons the first elements of each part, after the warp of its block that writes them. Bulk
// kernels also poison the parts that their peers write to them. A late peer may write correct data
// over that poison, but never over the part that this rank writes; a broadcast has no such part. A
// late peer may also read poison, if the output is also an input. Its floating-point sums are NaN
// then, but sums of integers are just wrong: only the fault shows it.
//
// # Progress
//
// Blocks wait for blocks of other ranks, never for blocks of their own grid. All ranks launch grids
// of the same size, and every rank's GPU can hold such a grid at once if it runs nothing else.
// Launch.resident returns that number of blocks, and a test checks it against the registers of the
// objects. Other work ends and makes room. If not all blocks fit, as when clients of the
// Multi-Process Service share a GPU, the first blocks still make progress: they wait for the same
// blocks of other ranks. The first warp of the first block detects different calls; the other
// blocks of such calls would wait for each other's epochs until the timeout. A kernel that overlaps
// with its predecessor in the stream is launched once all blocks of the predecessor have started,
// and occupies its own blocks while it waits. Kernels of any reduction do not overlap, because each
// of their blocks occupies a whole multiprocessor. Kernels do not overlap either if ranks of one
// process share a GPU.
//
// Calls of different groups do not always fit at the same time. Computed from threads and
// registers, a GPU with 132 multiprocessors fits two calls of up to 128 KiB (or with parts of that
// size), or a larger call and one of up to 8 KiB, each with another waiting call behind it. If two
// groups make larger calls at the same time, and ranks start them in different orders, they may
// wait for each other until the timeout ends them.
//
// A local kernel waits for no other rank. But a small one is launched before the preceding
// all-reduce has ended, and occupies blocks while it waits: on a quarter of the multiprocessors at
// most.
//
// # Objects
//
// make.sh compiles the sources with NVRTC, which needs no GPU. The objects are committed next to
// the sources and embedded; a test checks that they match.
//
//	sm_80        8.0, 8.6, 8.9
//	sm_90        9.0
//	sm_100       10.0, 10.3
//	sm_120       12.0, 12.1
//	compute_90   PTX for all later generations, which the driver compiles at the first Connect
//
// GPUs before 8.0 are not supported. Only kernels that wait for their predecessors in the stream
// (griddepcontrol.wait, from 9.0 on) are launched to overlap; a test checks the objects for this
// instruction. Without it, a kernel that starts early reads data before they are written: on an
// H100 that happened for nearly all words.
package kernels
