// Package reduce implements the arithmetic of the host backend: element-wise reductions of many
// sources into many destinations, copies and fills of raw memory.
//
// # Order
//
// Element i of every destination is src[0][i] op src[1][i] op ... op src[n-1][i], evaluated from
// left to right. Elements do not influence one another, so the bits of a result do not depend on
// how a range is cut into slices, on which rank reduces which slice, or on the machine: the
// AVX-512, AVX2 and portable implementations agree bit for bit on every input.
//
// # Values
//
//   - Integers wrap. Average truncates towards zero after a sum that wraps.
//   - Average divides a sum of floats by the number of sources, with one more rounding. A sum that
//     is infinite or a NaN is computed once more from scaled elements and so does not overflow, as
//     docs/reference/deterministic.md states.
//   - Float32 and Float64 round every operation to nearest, ties to even, and keep subnormal
//     numbers, on amd64 also where the calling thread flushes them or rounds otherwise: see
//     Arithmetic.
//   - Float16 and BFloat16 are widened to float32, accumulated there across all sources, divided
//     there if an average is wanted, and rounded once, to nearest even. Overflow gives infinity.
//   - Every NaN in a result is the same one, that of NVIDIA's GPUs: quiet and positive, with all
//     bits of the payload set (0x7fffffff, 0x7fffffffffffffff, 0x7fff). So it does not matter which
//     operand a processor takes a NaN from.
//   - Min and Max are minimum and maximum of IEEE 754-2019: a NaN in any source gives a NaN, and -0
//     is less than +0.
//   - BAnd, BOr and BXor are bitwise, and for integers only.
//   - One source without a division is a copy: the bits do not change, NaNs included.
//
// # Arithmetic
//
// A thread that is not Go's own may have set MXCSR to flush subnormal numbers, as
// torch.set_flush_denormal does. The kernels test for that with one addition, at no cost that can
// be measured, and where they must, set the register while they run; the portable code always sets
// it.
//
// # Memory
//
// A destination may be the same memory as any source, index for index; no other overlap of a
// destination with a source or with another destination is allowed. Pointers need no alignment.
// Sources that no destination overlaps are never written, and no byte outside the ranges given is
// read or written. Nothing here allocates, blocks or synchronises: ordering between ranks is the
// caller's business, except that streamed stores are fenced before a call returns, so that a
// release store which follows publishes them.
package reduce
