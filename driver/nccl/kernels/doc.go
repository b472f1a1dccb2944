// Package kernels holds the collectives that symmem runs itself on GPUs: the `direct` path.
//
// # Kernels
//
// There are three families (folder src, CUDA C++).
//
//   - Line kernels copy through exchange memory, in lines of 128 bytes. Each line carries a flag
//     that stands for the call: a rank that sees the flag has the data of the line, too. So a
//     message crosses the link once, and no barrier is needed. Buffers may be any memory. Line
//     kernels serve what fits into the exchange memory. As long as each warp of the grid has at
//     most one chunk of lines there is no loop, since code is fetched anew in every launch. For
//     more chunks there are wide kernels: a thread moves 16 bytes instead of 8, and a warp sends
//     its next chunk before it waits for the last one. Twin kernels, for sums of 2 ranks, send two
//     chunks for each warp and need no loop either.
//   - Bulk kernels read and write the peers' buffers in place, between two barriers. Buffers are
//     symmetric. Bulk kernels serve what is larger. If the buffers of a large reduction are not
//     symmetric, it goes through exchange memory in pieces. Each piece is a launch of a line kernel
//     and counts as a call of its own.
//   - Local kernels do the rest of a norm after its all-reduce: they add the sums to a residual and
//     normalize each row of it. A row belongs to one block. So a norm is two kernels that are
//     launched together. That was measured to be faster than one kernel: 5 us against 8 and more
//     for a row of 4096 on 4 H200. All ranks normalize all rows, with the same bits, since the
//     squares of a row are added up in the same order everywhere. A local kernel reads the fault
//     word that the all-reduce sets if it fails, and then writes marks. For many rows of up to 8192
//     there is one with fewer registers, so that two rows fit on a multiprocessor.
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
// The four with _any are called kernels of any reduction below.
//
// Reductions start with the value of the first rank and combine one rank after the other, 16-bit
// types in float32, all others in their own type. Every step is rounded to nearest even, nothing is
// fused into a multiply-add, and the result of a 16-bit type is rounded once. So every rank gets
// the same bits, in every run, from every kernel. An average is the sum divided by the number of
// ranks (IEEE division; integers wrap and truncate towards zero). If the sum of floats is not
// finite it is computed once more, from scaled numbers, by a function that common calls do not
// load. Subnormal numbers are kept. Minimum and maximum are those of IEEE 754-2019. A NaN in a
// result has all bits set but the sign.
//
// # Calls
//
// In every call each rank sends each other rank the digest of its call, in words next to the data.
// So a kernel whose peers came to another call fails instead of mixing the two. And since every
// rank waits for a word of every other, no rank is ever two calls ahead: that is why two halves of
// exchange memory, used in turn, are enough. If two calls of one group ran at the same time on a
// GPU, they would have the same number, and if they were alike they would take each other's data.
// Package nccl keeps them apart, on all streams, in branches of a capture, and in replays.
//
// Every wait checks a word that the host sets to end it, and the clock of the GPU. The first fault
// of a rank is in its Report.
//
// # After a fault
//
// A rank that has met a fault sends nothing and takes nothing from then on, whatever is queued or
// replayed, since its input may be wrong. The fault word and the number of the call share the 16
// bytes that each block reads first, so that a check for a fault needs no other load. When the host
// ends the kernels, it copies its own word to the first of these fault words; the warp without data
// also checks that one. Input is fetched before it is known whether there was a fault.
//
// What a call that fails leaves undone is marked: all bits are set, a NaN in every floating-point
// type. A warp or block marks what it was to write itself, so this rank never writes over a mark.
// If all data have come, but not the words of another rank, the warp without data marks the first
// number of each part, after the warp of its block that writes it. Bulk kernels also mark what
// their peers write to them. A peer that is late may write correct data over those marks, but never
// over the part that this rank writes; a broadcast has no such part. A late peer may also read
// marks, if the output is an input, too. Its floating-point sums are NaN then, but sums of integers
// are just wrong: only the fault shows it.
//
// # Progress
//
// Blocks wait for blocks of other ranks, never for blocks of their own grid. All ranks launch grids
// of the same size, and every rank's GPU holds such a grid at once if it runs nothing else.
// Launch.resident says how many blocks that is, and a test checks the objects: the registers are
// enough for it. Other work ends by itself and makes room. Where blocks have no room, as where
// clients of the Multi-Process Service share a GPU, the first ones go ahead: they wait for the same
// blocks of other ranks. The first warp of the first block tells different calls apart, whose other
// blocks would wait for each other's numbers until the timeout. A kernel that overlaps with the one
// before it in its stream is launched once all blocks of that one have started, and holds its own
// blocks while it waits. Kernels of any reduction, whose blocks take a whole multiprocessor each,
// overlap with none; nor do kernels where ranks of one process share a GPU.
//
// Calls of different groups need not all fit at once. By arithmetic over threads and registers
// these do on a GPU with 132 multiprocessors, with another call that waits behind each: two calls
// of up to 128 KiB (or with parts of that size), and a larger one with one of up to 8 KiB. If two
// groups make larger calls at the same time, and ranks start them in different orders, they may
// wait for each other until the timeout ends them.
//
// A local kernel waits for no other rank. But a small one is launched before the all-reduce ahead
// of it has ended, and holds blocks while it waits: on a quarter of the multiprocessors at most.
//
// # Objects
//
// make.sh compiles the sources with NVRTC, which needs no GPU. The objects are kept next to the
// sources and embedded; a test checks that they belong together.
//
//	sm_80        8.0, 8.6, 8.9
//	sm_90        9.0
//	sm_100       10.0, 10.3
//	sm_120       12.0, 12.1
//	compute_90   PTX for all later generations, which the driver compiles at the first Connect
//
// GPUs before 8.0 are refused. Only kernels that wait for those ahead of them in the stream
// (griddepcontrol.wait, from 9.0 on) are launched to overlap: a test reads that from each object.
// Without the wait a kernel that starts early would read what has not been written yet: nearly all
// words, measured on an H100.
package kernels
