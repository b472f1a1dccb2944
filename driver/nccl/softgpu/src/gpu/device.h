// What kernels ask of the device, for one that is a processor. It stands in for the header of the
// same name beside the kernels; what the functions promise is written there.
#pragma once
#include "lane.h"

// Build defines KERNEL otherwise where it lists the kernels.
#ifndef KERNEL
#define KERNEL extern "C" __attribute__((visibility("hidden"))) void
#endif
#define DEVICE static inline
#define KERNEL_OF(threads, blocks) KERNEL
#define MEMBER inline
#define NOINLINE static __attribute__((noinline, unused))
#define __grid_constant__

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(16) Pack {
	u64 a, b;
};

namespace dev {

DEVICE u32 thread() { return gpu_self->thread; }
DEVICE u32 threads() { return gpu_self->warp->block->threads; }
DEVICE u32 block() { return gpu_self->warp->block->number; }
DEVICE u32 blocks() { return gpu_self->warp->block->blocks; }

DEVICE void sync_block() { gpu_sync(true); }
DEVICE bool all_block(bool mine) {
	gpu_sync(mine);
	return gpu_self->warp->block->all;
}
DEVICE void sync_warp() { gpu_vote(true); }
DEVICE bool all_warp(bool mine) {
	gpu_vote(mine);
	return gpu_self->warp->all;
}
DEVICE bool any_warp(bool mine) {
	gpu_vote(mine);
	return gpu_self->warp->any;
}
// Kernels do not overlap here.
DEVICE void next_may_launch() {}
DEVICE void await_previous() {}

DEVICE float sum_block(float mine) { return gpu_sum(mine); }

// Lines move 8 or 16 bytes a thread.
template <class Part>
DEVICE Part load_line(const Part* at) {
	uint64_t words[sizeof(Part) / 8];
	gpu_load_line(at, words, sizeof(Part) / 8);
	Part p;
	__builtin_memcpy(&p, words, sizeof(Part));
	return p;
}
template <class Part>
DEVICE void store_line(Part* at, Part p) {
	uint64_t words[sizeof(Part) / 8];
	__builtin_memcpy(words, &p, sizeof(Part));
	gpu_store_line(at, words, sizeof(Part) / 8);
}

DEVICE bool sum_warps(u32 turn, float* pair) {
	gpu_lane* self = gpu_self;
	gpu_block* block = self->warp->block;
	for (int i = 0; i < 2; i++) self->pairs[turn % 2][i] = pair[i];
	gpu_sync(true);
	if (self->warp != &block->warps[turn % block->warp_count]) return false;
	pair[0] = pair[1] = 0;
	for (u32 w = 0; w < block->warp_count; w++)
		for (int i = 0; i < 2; i++) pair[i] += block->warps[w].lanes[self->number].pairs[turn % 2][i];
	return true;
}

// show lets the lanes of a warp look at words of each other, until they vote again.
template <class... Word>
DEVICE const gpu_lane* show(Word... words) {
	u32 all[] = {words...};
	__builtin_memcpy(gpu_self->words, all, sizeof all);
	gpu_vote(true);
	return gpu_self->warp->lanes;
}

DEVICE Pack load_once(const Pack* at) { return *at; }
DEVICE Pack load_early(const Pack* at, bool has) { return has ? *at : Pack{}; }
DEVICE u32 load_word(const u32* at, bool has) { return has ? *at : 0; }
DEVICE void store_once(Pack* at, Pack p) { *at = p; }

DEVICE void release(u64* at, u64 value) {
	__atomic_store_n(at, value, __ATOMIC_RELEASE);
	gpu_moved();
}
DEVICE u64 acquire(const u64* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }

// The thread sanitizer does not understand fences, so for it words in no order are in order.
#ifdef __SANITIZE_THREAD__
enum { Load = __ATOMIC_ACQUIRE, Store = __ATOMIC_RELEASE };
#else
enum { Load = __ATOMIC_RELAXED, Store = __ATOMIC_RELAXED };
#endif
DEVICE u64 load_relaxed(const u64* at) { return __atomic_load_n(at, Load); }
DEVICE u32 load_relaxed(const u32* at) { return __atomic_load_n(at, Load); }
DEVICE void store_relaxed(u64* at, u64 value) { __atomic_store_n(at, value, Store); }
DEVICE void store_relaxed(u32* at, u32 value) { __atomic_store_n(at, value, Store); }

DEVICE u32 swap_if(u32* at, u32 expected, u32 next) {
	__atomic_compare_exchange_n(at, &expected, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	return expected;
}
DEVICE void fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

DEVICE u64 clock() { return gpu_clock(); }
DEVICE void pause() { gpu_pause(); }

DEVICE float from_bits(u32 bits) {
	float f;
	__builtin_memcpy(&f, &bits, 4);
	return f;
}
DEVICE u32 to_bits(float f) {
	u32 bits;
	__builtin_memcpy(&bits, &f, 4);
	return bits;
}

DEVICE float of_lane(u32 bits, float mine) {
	const gpu_lane* lanes = show(to_bits(mine));
	float other = from_bits(lanes[gpu_self->number ^ bits].words[0]);
	gpu_vote(true);
	return other;
}

// product is that of two pairs of bfloat16.
DEVICE float product(u32 a, u32 b) {
	return from_bits(a << 16) * from_bits(b << 16) + from_bits(a & 0xffff0000) * from_bits(b & 0xffff0000);
}

// Lane l has columns l % 4 * 2, the next, and those 8 behind them: of rows l / 4 and 8 below of the first
// matrix, and of row l / 4 of the second one, which is stored by columns. Of the sums it has columns
// l % 4 * 2 and the next of the same two rows.
DEVICE void multiply(float* sums, Pack a, u32 b0, u32 b1) {
	const gpu_lane* lanes = show((u32)a.a, (u32)(a.a >> 32), (u32)a.b, (u32)(a.b >> 32), b0, b1);
	u32 me = gpu_self->number;
	for (u32 i = 0; i < 4; i++)
		for (u32 k = 0; k < 4; k++) {
			const uint32_t* row = lanes[me / 4 * 4 + k].words + i / 2;
			const uint32_t* column = lanes[(me % 4 * 2 + i % 2) * 4 + k].words + 4;
			sums[i] += product(row[0], column[0]) + product(row[2], column[1]);
		}
	gpu_vote(true);
}

// What the device gives instead of a number has these bits, whatever it was given.
DEVICE float nan() { return from_bits(0x7fffffff); }
DEVICE bool is_nan(float f) { return f != f; }

// minimum and maximum are those of IEEE 754-2019: a NaN wins, and -0 is less than 0.
DEVICE float minimum(float a, float b) {
	if (is_nan(a) || is_nan(b)) return nan();
	if (a == b) return to_bits(a) >> 31 ? a : b;
	return a < b ? a : b;
}
DEVICE float maximum(float a, float b) {
	if (is_nan(a) || is_nan(b)) return nan();
	if (a == b) return to_bits(a) >> 31 ? b : a;
	return a > b ? a : b;
}

// shift_even divides by a power of two and rounds to nearest, ties to even.
DEVICE u32 shift_even(u32 v, u32 bits) {
	u32 half = 1u << (bits - 1), rest = v & ((1u << bits) - 1), whole = v >> bits;
	return whole + (rest > half || (rest == half && (whole & 1)));
}

DEVICE float from_half(u16 h) {
	u32 sign = (u32)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
	if (exponent == 31) return fraction != 0 ? nan() : from_bits(sign | 0x7f800000);
	if (exponent != 0) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
	float small = (float)fraction * 0x1p-24f;
	return sign != 0 ? -small : small;
}
DEVICE u16 to_half(float f) {
	u32 bits = to_bits(f), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
	if (is_nan(f)) return 0x7fff;
	if (size >= 0x477ff000) return (u16)(sign | 0x7c00);  // 65520 and more
	if (size >= 0x38800000) return (u16)(sign | (shift_even(size, 13) - (112 << 10)));
	u32 shift = 126 - (size >> 23);  // of the fraction, to units of 2^-24
	if (shift > 24) return (u16)sign;
	return (u16)(sign | shift_even((size & 0x7fffff) | 0x800000, shift));
}
DEVICE u32 to_bfloat(float f) { return is_nan(f) ? 0x7fff : shift_even(to_bits(f), 16); }
DEVICE u32 to_bfloats(float low, float high) { return to_bfloat(high) << 16 | to_bfloat(low); }

// inverse_root is exact to half a unit, the device's to two.
DEVICE float inverse_root(float f) { return (float)(1 / __builtin_sqrt((double)f)); }

}  // namespace dev
