// Package reduce implements the arithmetic of the host backend: element-wise reductions of many
// sources into many destinations, copies and fills of raw memory.
//
// # Order
//
// Element i of every destination is src[0][i] op src[1][i] op ... op src[n-1][i], evaluated from
// left to right. The bits of a result depend neither on how a range is cut into slices nor on the
// machine, because the AVX-512, AVX2 and portable implementations agree bit for bit.
//
// # Values
//
//   - Integers wrap. Average divides the wrapped sum and truncates towards zero.
//   - Average divides a sum of floats by the number of sources, with one more rounding. An infinite
//     or NaN sum is computed again from scaled elements, so that it does not overflow, as
//     docs/reference/deterministic.md specifies.
//   - ScaledSum rounds the factor to the type in which elements are combined, multiplies each
//     element, rounds the product in that type, and adds the products. Nothing is fused.
//   - Float32 and Float64 round every operation to nearest, ties to even, and keep subnormal
//     numbers, on amd64 whatever the thread's settings.
//   - Float16 and BFloat16 are accumulated (and divided) in float32, and rounded once, to nearest
//     even. Overflow yields Inf.
//   - Every NaN in a result has the same bits as on NVIDIA's GPUs: it is quiet and positive, with
//     all bits of the payload set (0x7fffffff, 0x7fffffffffffffff, 0x7fff).
//   - Min and Max are those of IEEE 754-2019: a NaN in any source gives a NaN, and -0 is less than
//     +0.
//   - A single source without a division or a factor is copied: no bit changes, not even in NaNs.
//
// # Arithmetic
//
// A thread that Go did not create may have set MXCSR to flush subnormal numbers, for example with
// torch.set_flush_denormal. The kernels test for that with one addition and if necessary set the
// register while they run. The portable code always sets the register.
//
// # Memory
//
// A destination may be the same memory as a source, beginning at the same address. Destinations
// must not otherwise overlap sources or other destinations. Pointers need no alignment. No byte
// outside the given ranges is accessed. No function allocates, blocks or synchronizes, so the
// caller must order the ranks' accesses. Streamed stores are fenced before a call returns, so that
// a later release store publishes them.
package reduce
