// Package kernels holds the collectives that symmem runs itself on GPUs: the `direct` path.
//
// # Kernels
//
// There are three families (folder src, CUDA C++).
//
//   - Line kernels copy through exchange memory, in lines of 128 bytes that carry a flag, which
//     stands for the call: who finds the flag has the data, so a message takes one way over the
//     link and no barrier. Buffers may be any memory. They serve what fits into the exchange
//     memory. As long as each warp of the grid has one chunk of lines at most there is no loop,
//     since code is fetched anew in every launch. For more there are wide kernels: a thread moves
//     16 bytes instead of 8, and a warp gives its next chunk away before it waits for the last.
//     Twin kernels, of sums of 2 ranks, give away two chunks for each warp and need no loop either.
//   - Bulk kernels read and write the peers' buffers in place, between two barriers. Buffers are
//     symmetric. They serve what is larger. A reduction whose buffers are not goes through exchange
//     memory in pieces, each a launch of a line kernel, with a number of its own.
//   - The local kernels do what is left of a norm after the all-reduce: they add the sums to a
//     residual and normalize each row of it, which belongs to one block. So a norm is two
//     kernels, launched together, the second of which does what is left; measured faster than
//     one, 5 us against 8 and more for a row of 4096 on 4 H200. All ranks normalize all rows,
//     with the same bits, since the squares of a row are added up in one order everywhere. They
//     look at the word that the first one sets if it fails, and then write marks. For rows of
//     up to 8192 of which many come there is one with fewer registers, so that a multiprocessor
//     has two rows.
//
// # Types and operations
//
//	line_sum, wide_sum, twin_sum     float32, float16, bfloat16, int32: all but Prod, in the order
//	line_two_shot                    of ranks; twin_sum for 2 ranks, line_two_shot for more
//	bulk_sum, bulk_two_shot
//	wide_any, line_two_shot_any      all types, operations and formulas (driver.Formula), for any
//	bulk_any, bulk_two_shot_any      number of ranks: what the others do not have
//	line_copy, wide_copy, bulk_copy  copies of any type
//
// Reductions begin with the value of the first rank and combine one rank after the other, 16-bit
// types in float32, all others in their own; every step is rounded to nearest even, nothing is
// multiplied and added at once, and the result of a 16-bit type is rounded once. So every rank gets
// the same bits, in every run, by every kernel. Averages are the sum divided by the number of ranks
// (IEEE division; integers wrap and truncate towards zero). Subnormal numbers are kept. Minimum and
// maximum are those of IEEE 754-2019. A NaN that comes out has all bits but the sign.
//
// # Calls
//
// In every call each rank tells each other rank the digest of its call, in words next to the
// data. So a kernel whose peers came to another call fails instead of mixing the two; and since
// every rank waits for a word of every other, none is ever two calls ahead, which is what lets
// two halves of exchange memory take turns. Two calls of one group that ran at once on a GPU would
// have one number, and take each other's data if they are alike. Package nccl keeps them apart, on
// all streams, in branches of a capture, and in replays.
//
// Every wait looks at a word that the host sets to end it and at the clock of the GPU. What
// went wrong first on a rank is in its Report.
//
// # After a fault
//
// A rank that has met a fault is silent from then on: its kernels give nothing to others and take
// nothing, whatever is queued or replayed, since nobody knows what their input is. The fault lies
// in the 16 bytes that each block reads first, with the number of the call, so asking takes no
// other load. The host, when it ends the kernels, copies its word to the first of those; the last
// warp, which has no data, looks at it, too. Input is fetched before the fault is known.
//
// What a call that fails leaves undone is marked: all bits are set, a NaN in every floating type.
// A warp or block marks what it was to write itself, so no mark is written over by this rank. If
// all data have come and only the words of another rank have not, the last warp marks the first
// number of each part, once the block that writes it has ended. Bulk kernels mark what their peers
// write to them, too. A late peer may write what is right over that, but never over the part that
// this rank writes; of a broadcast there is none. A peer that is late may also read marks of an
// output that is an input, and then has NaNs for sums; sums of integers are wrong, then, and only
// the fault tells.
//
// # Progress
//
// Blocks wait for blocks of other ranks, never for blocks of their own grid, and all ranks
// launch grids of the same size, which every rank's GPU holds at once if it runs nothing else:
// Request.resident says how many blocks those are, and a test reads from the objects that the
// registers do. Other work ends by itself and makes room. A kernel that overlaps with the one
// before it in its stream comes when all blocks of that one have come, and waits in its places.
// Kernels of any reduction, of which a block has a whole multiprocessor, overlap with none; nor do
// kernels where ranks of one process share a GPU.
//
// Calls of different groups need not all fit at once. By arithmetic over threads and registers
// these do on a GPU with 132 multiprocessors, with a call that waits behind each: two calls of up
// to 128 KiB (or with parts of that), and a larger one with one of up to 8 KiB. If two groups make
// larger calls at the same time and ranks start them in different orders, they may wait for each
// other until the clock ends them.
//
// A local kernel waits for no rank. But if it is small it is launched before the all-reduce ahead
// of it has ended, and waits for that one in its places: on a quarter of the multiprocessors at
// most.
//
// # Objects
//
// make.sh compiles the sources with NVRTC, which needs no GPU. The objects are kept next to them
// and embedded; a test holds the two together.
//
//	sm_80        8.0, 8.6, 8.9
//	sm_90        9.0
//	sm_100       10.0, 10.3
//	sm_120       12.0, 12.1
//	compute_90   PTX for all later generations, which the driver compiles at the first Connect
//
// GPUs before 8.0 are refused. Only kernels that wait for those ahead of them in the stream
// (griddepcontrol.wait, from 9.0 on) are launched to overlap: a test reads that from each object.
// Without the wait a kernel that follows one which lets it begin early reads what is not written
// yet: nearly all words, measured on an H100.
package kernels
