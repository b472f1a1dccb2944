// Package reduce implements the arithmetic of the host backend: element-wise reductions of many
// sources into many destinations, copies and fills of raw memory.
//
// # Results
//
// Element i of every destination is src[0][i] op src[1][i] op ... op src[n-1][i], evaluated from
// left to right. The AVX-512, AVX2 and portable implementations agree bit for bit.
//
//   - Integers wrap. Average divides the wrapped sum and truncates towards zero.
//   - Average divides a sum of floats by the number of sources, with one more rounding. If the sum
//     is infinite or a NaN, it adds scaled elements, as docs/reference/deterministic.md specifies.
//   - ScaledSum rounds the factor and the products to the type in which elements are combined.
//   - Float32 and Float64 round every operation to nearest even, and keep subnormal numbers.
//     Float16 and BFloat16 are accumulated in float32, and rounded once.
//   - Every NaN in a result has the same bits as on NVIDIA's GPUs: 0x7fffffff, 0x7fffffffffffffff
//     or 0x7fff.
//   - Min and Max are those of IEEE 754-2019: a NaN in any source gives a NaN, and -0 is less than
//     +0.
//   - A single source without a division or a factor is copied, even its NaNs.
//
// A thread that Go did not create may flush subnormal numbers, for example after
// torch.set_flush_denormal. The kernels test for that with one addition, and the portable code
// always sets MXCSR.
//
// # Memory
//
// A destination may be the same memory as a source. Destinations must not otherwise overlap sources
// or other destinations. Pointers need no alignment. No function allocates, blocks or synchronizes.
// Streamed stores are fenced before a call returns, so that a later release store publishes them.
package reduce
