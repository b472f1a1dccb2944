// The device functions of the kernels, in inline PTX for compute_80 and later. The software GPU
// (internal/softgpu) replaces this header by its own of the same name.
#pragma once

// KERNEL_OF sets the launch bounds: the maximum number of threads of a block, and the number of blocks
// that must fit on a multiprocessor. Together they limit the registers of a thread, which are allocated
// in units of eight.
#define KERNEL KERNEL_OF(512, 1)
#define KERNEL_OF(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define DEVICE static __device__ __forceinline__
#define MEMBER __device__ __forceinline__
#define NOINLINE static __device__ __noinline__

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Pack is a 16-byte vector, loaded and stored in one instruction.
struct alignas(16) Pack {
	u64 a, b;
};

namespace dev {

DEVICE u32 thread() { return threadIdx.x; }
DEVICE u32 threads() { return blockDim.x; }
DEVICE u32 block() { return blockIdx.x; }
DEVICE u32 blocks() { return gridDim.x; }

// All threads of a block must call sync_block and all_block. All threads of a warp must call sync_warp,
// all_warp, any_warp, vote, shuffle, or_warp and sum_warp, and all threads of a line load_line and
// store_line.
DEVICE void sync_block() { __syncthreads(); }
DEVICE bool all_block(bool mine) { return __syncthreads_and(mine) != 0; }
// sync_warp makes the threads of a warp converge. Their next access is then one transaction.
DEVICE void sync_warp() { __syncwarp(); }
DEVICE bool all_warp(bool mine) { return __all_sync(~0u, mine) != 0; }
DEVICE bool any_warp(bool mine) { return __any_sync(~0u, mine) != 0; }
// vote returns the set of lanes whose argument is true.
DEVICE u32 vote(bool mine) { return __ballot_sync(~0u, mine); }
DEVICE u32 count_bits(u32 set) { return (u32)__popc(set); }
// shuffle returns the argument of another lane.
DEVICE u32 shuffle(u32 mine, u32 lane) { return __shfl_sync(~0u, mine, (int)lane); }
// or_warp and sum_warp combine the arguments of a warp.
DEVICE u32 or_warp(u32 mine) {
	u32 all;
	asm volatile("redux.sync.or.b32 %0,%1,0xffffffff;" : "=r"(all) : "r"(mine));
	return all;
}
DEVICE u32 sum_warp(u32 mine) {
	u32 all;
	asm volatile("redux.sync.add.u32 %0,%1,0xffffffff;" : "=r"(all) : "r"(mine));
	return all;
}

// sum_block adds up a value over a block, always in the same order. The block must consist of whole
// warps.
DEVICE float sum_block(float mine) {
	__shared__ float sums[32];
	for (int step = 16; step > 0; step /= 2) mine += __shfl_xor_sync(~0u, mine, step);
	__syncthreads();
	if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = mine;
	__syncthreads();
	float all = 0;
	for (u32 i = 0; i < blockDim.x / 32; i++) all += sums[i];
	return all;
}

// shared returns memory of a block. The kernel must not call it for several sizes.
template <u32 Bytes>
DEVICE char* shared() {
	__shared__ alignas(16) char memory[Bytes];
	return memory;
}

DEVICE float from_bits(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 to_bits(float f) { return __float_as_uint(f); }

// The following maxima are those of values that are not negative, or NaN without a sign. The bits of such
// values are ordered like the values, and NaN is the largest. All threads of a warp call the functions.
// maximum_of_16 returns the maximum over 16 neighbouring lanes.
DEVICE u32 maximum_of_warp(u32 v) {
	u32 most;
	asm volatile("redux.sync.max.u32 %0,%1,0xffffffff;" : "=r"(most) : "r"(v));
	return most;
}
DEVICE float maximum_of_16(float v) {
	bool low = threadIdx.x % 32 < 16;
	u32 bits = to_bits(v), a = maximum_of_warp(low ? bits : 0), b = maximum_of_warp(low ? 0 : bits);
	return from_bits(low ? a : b);
}

// opaque returns its argument, and all threads of a warp call it. Without it, the compiler reads the number
// of a thread, or an address in shared memory, from a special register at each use, which takes long.
DEVICE u32 opaque(u32 v) {
	u32 same;
	asm volatile("shfl.sync.idx.b32 %0,%1,%2,0x1f,0xffffffff;" : "=r"(same) : "r"(v), "r"(threadIdx.x % 32));
	return same;
}

// local returns the address of shared memory that the following functions take.
DEVICE u32 local(const void* at) { return opaque((u32)__cvta_generic_to_shared(at)); }
DEVICE Pack load_local(u32 at) {
	Pack p;
	asm volatile("ld.shared.v2.u64 {%0,%1},[%2];" : "=l"(p.a), "=l"(p.b) : "r"(at) : "memory");
	return p;
}
DEVICE u32 load_word(u32 at) {
	u32 word;
	asm volatile("ld.shared.u32 %0,[%1];" : "=r"(word) : "r"(at) : "memory");
	return word;
}
DEVICE void store_word(u32 at, u32 word) { asm volatile("st.shared.u32 [%0],%1;" ::"r"(at), "r"(word) : "memory"); }
// count_at adds 1 to a word, atomically.
DEVICE void count_at(u32 at) { asm volatile("red.shared.add.u32 [%0],1;" ::"r"(at) : "memory"); }
DEVICE float sum_four(u32 at) {
	float4 v;
	asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3},[%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
	return (v.x + v.y) + (v.z + v.w);
}

// sum_row adds up a value over the first 16 warps of a block, always in the same order. The values of
// other warps are 0. Blocks consist of whole warps. sums is the address of SumBytes of shared memory. If
// the call quantizes, sum_row also computes the maximum of most over 16 lanes, or over the block.
enum : u32 { SumBytes = 256 };
DEVICE void sum_row(u32 sums, float& mine, float& most, bool quantizes, bool of_block, u32 me) {
	u32 warp = me / 32, lane = me % 32, warps = blockDim.x / 32;
	bool low = lane < 16;
	u32 a = 0, b = 0;
	if (quantizes) {
		u32 bits = to_bits(most);
		a = maximum_of_warp(low ? bits : 0), b = maximum_of_warp(low ? 0 : bits);
	}
	for (int step = 16; step > 0; step /= 2) mine += __shfl_xor_sync(~0u, mine, step);
	if (lane == 0) {
		store_word(sums + warp * 4, to_bits(mine));
		if (quantizes) store_word(sums + SumBytes / 2 + warp * 4, a > b ? a : b);
	}
	if (me < 16 && me >= warps) store_word(sums + me * 4, 0);
	__syncthreads();
	float t[4];
	for (int i = 0; i < 4; i++) t[i] = sum_four(sums + 16 * i);
	mine = (t[0] + t[1]) + (t[2] + t[3]);
	if (quantizes) most = from_bits(low ? a : b);
	if (of_block) most = from_bits(maximum_of_warp(lane < warps ? load_word(sums + SumBytes / 2 + lane * 4) : 0));
}

// load_line and store_line access lines of 128 bytes, 8 or 16 bytes per thread. Neighbouring threads
// access a line in one transaction. A reader that sees the last word of a line therefore sees the whole
// line.
DEVICE u64 load_line(const u64* at) {
	u64 word;
	asm volatile("ld.volatile.global.u64 %0,[%1];" : "=l"(word) : "l"(at) : "memory");
	return word;
}
DEVICE void store_line(u64* at, u64 word) {
	asm volatile("st.volatile.global.u64 [%0],%1;" ::"l"(at), "l"(word) : "memory");
}
DEVICE Pack load_line(const Pack* at) {
	Pack p;
	asm volatile("ld.volatile.global.v2.u64 {%0,%1},[%2];" : "=l"(p.a), "=l"(p.b) : "l"(at) : "memory");
	return p;
}
DEVICE void store_line(Pack* at, Pack p) {
	asm volatile("st.volatile.global.v2.u64 [%0],{%1,%2};" ::"l"(at), "l"(p.a), "l"(p.b) : "memory");
}

// load_once and store_once access data of this GPU or of a peer that is not used again soon.
DEVICE Pack load_once(const Pack* at) {
	Pack p;
	asm volatile("ld.global.L1::no_allocate.v2.u64 {%0,%1},[%2];" : "=l"(p.a), "=l"(p.b) : "l"(at) : "memory");
	return p;
}
DEVICE void store_once(Pack* at, Pack p) {
	asm volatile("st.global.v2.u64 [%0],{%1,%2};" ::"l"(at), "l"(p.a), "l"(p.b) : "memory");
}

// release makes all earlier writes visible to any thread that reads the value with acquire. The thread
// may run on another GPU.
DEVICE void release(u64* at, u64 value) {
	asm volatile("st.release.sys.global.u64 [%0],%1;" ::"l"(at), "l"(value) : "memory");
}
DEVICE u64 acquire(const u64* at) {
	u64 value;
	asm volatile("ld.acquire.sys.global.u64 %0,[%1];" : "=l"(value) : "l"(at) : "memory");
	return value;
}

// load_relaxed and store_relaxed access words that other threads or the host change. They do not order
// other accesses. A Pack is loaded at once.
DEVICE u64 load_relaxed(const u64* at) { return *(const volatile u64*)at; }
DEVICE u32 load_relaxed(const u32* at) { return *(const volatile u32*)at; }
DEVICE Pack load_relaxed(const Pack* at) {
	Pack p;
	asm volatile("ld.volatile.global.v2.u64 {%0,%1},[%2];" : "=l"(p.a), "=l"(p.b) : "l"(at) : "memory");
	return p;
}
DEVICE void store_relaxed(u64* at, u64 value) { *(volatile u64*)at = value; }
DEVICE void store_relaxed(u32* at, u32 value) { *(volatile u32*)at = value; }

// swap_if stores next if the word equals expected, and returns the previous value.
DEVICE u32 swap_if(u32* at, u32 expected, u32 next) { return atomicCAS(at, expected, next); }
DEVICE void fence() { __threadfence_system(); }

// next_may_launch and await_previous implement programmatic dependent launch. next_may_launch allows
// blocks of the stream's next kernel to start while this one runs, if that kernel was launched with the
// attribute. await_previous waits until the previous kernels have ended and their writes are visible.
// Kernels must not access memory before it. GPUs before compute capability 9.0 do not overlap kernels.
DEVICE void next_may_launch() {
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
DEVICE void await_previous() {
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// fetch prefetches an address into the L2 cache of this GPU. Before await_previous it takes no time,
// because it depends only on registers and kernel arguments. Writes by previous kernels remain visible
// after await_previous.
DEVICE void fetch(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

// clock returns the time in nanoseconds.
DEVICE u64 clock() {
	u64 now;
	asm volatile("mov.u64 %0,%globaltimer;" : "=l"(now));
	return now;
}

// pause runs between two polls. PollsAtOnce polls take about as long as one read of the clock.
DEVICE void pause() {}
enum { PollsAtOnce = 128 };

DEVICE double double_of(u64 bits) { return __longlong_as_double((long long)bits); }
DEVICE u64 bits_of(double d) { return (u64)__double_as_longlong(d); }

// multiply rounds the product. The compiler does not fuse it with an addition.
DEVICE float multiply(float a, float b) { return __fmul_rn(a, b); }
DEVICE double multiply(double a, double b) { return __dmul_rn(a, b); }

DEVICE float minimum(float a, float b) {
	float r;
	asm("min.NaN.f32 %0,%1,%2;" : "=f"(r) : "f"(a), "f"(b));
	return r;
}
DEVICE float maximum(float a, float b) {
	float r;
	asm("max.NaN.f32 %0,%1,%2;" : "=f"(r) : "f"(a), "f"(b));
	return r;
}
DEVICE float from_half(u16 h) {
	float r;
	asm("cvt.f32.f16 %0,%1;" : "=f"(r) : "h"(h));
	return r;
}
DEVICE u16 to_half(float f) {
	u16 r;
	asm("cvt.rn.f16.f32 %0,%1;" : "=h"(r) : "f"(f));
	return r;
}
// to_bfloats rounds two values to nearest even.
DEVICE u32 to_bfloats(float low, float high) {
	u32 r;
	asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(high), "f"(low));
	return r;
}
DEVICE float inverse_root(float f) { return rsqrtf(f); }
// inverse_of_root rounds the root and the quotient.
DEVICE float inverse_of_root(float f) { return __frcp_rn(__fsqrt_rn(f)); }
DEVICE float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE float magnitude(float f) {
	float r;
	asm("abs.f32 %0,%1;" : "=f"(r) : "f"(f));
	return r;
}

// inverse and quotient_by round like the operator /. They have no branch for small and large arguments, so
// the argument must be NaN, infinite, or between 2^-100 and 2^120.
DEVICE float inverse(float f) {
	float r;
	asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(f));
	float rest = __fmaf_rn(r, -f, 1);
	return rest == rest ? __fmaf_rn(r, rest, r) : r;
}
template <int Divisor>
DEVICE float quotient_by(float f) {
	constexpr float reciprocal = 1.0f / Divisor;
	float q = __fmul_rn(f, reciprocal), rest = __fmaf_rn(q, -Divisor, f);
	return rest == rest ? __fmaf_rn(rest, reciprocal, q) : q;
}

// to_e4m3 rounds eight values to float8 (e4m3) and to nearest even. Values beyond 448 become 448.
#if __CUDA_ARCH__ >= 890
DEVICE u32 four_to_e4m3(const float* v) {
	u32 four;
	asm("{.reg .b16 low,high;\n"
		"cvt.rn.satfinite.e4m3x2.f32 low,%2,%1;\n"
		"cvt.rn.satfinite.e4m3x2.f32 high,%4,%3;\n"
		"mov.b32 %0,{low,high};}"
		: "=r"(four) : "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]));
	return four;
}
DEVICE u64 to_e4m3(const float* v) { return (u64)four_to_e4m3(v + 4) << 32 | four_to_e4m3(v); }
#else
#include <e4m3.h>
#endif

}  // namespace dev
