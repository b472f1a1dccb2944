// Device functions of the kernels for a CPU. This header replaces the header of the same name next
// to the kernels, where the functions are documented.
#pragma once
#include "lane.h"

// Build defines KERNEL differently where it lists the kernels.
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
DEVICE u32 vote(bool mine) {
	gpu_vote(mine);
	return gpu_self->warp->voted;
}
DEVICE u32 count_bits(u32 set) { return (u32)__builtin_popcount(set); }
DEVICE u32 shuffle(u32 mine, u32 lane) {
	gpu_publish(mine);
	return gpu_published(lane);
}
DEVICE u32 or_warp(u32 mine) {
	u32 all = 0;
	gpu_publish(mine);
	for (u32 lane = 0; lane < GPU_LANES; lane++) all |= gpu_published(lane);
	return all;
}
DEVICE u32 sum_warp(u32 mine) {
	u32 all = 0;
	gpu_publish(mine);
	for (u32 lane = 0; lane < GPU_LANES; lane++) all += gpu_published(lane);
	return all;
}
// Kernels do not overlap on this device.
DEVICE void next_may_launch() {}
DEVICE void await_previous() {}
DEVICE void fetch(const void*) {}

// sum_block belongs to kernels that no call uses any more.
DEVICE float sum_block(float mine) {
	float none = 0;
	gpu_sum(&mine, &none);
	return mine;
}
DEVICE float inverse_root(float f) { return 1 / __builtin_sqrtf(f); }

template <u32 Bytes>
DEVICE char* shared() {
	return (char*)gpu_shared(Bytes);
}
DEVICE u32 opaque(u32 v) { return v; }
DEVICE u32 local(const void* at) { return (u32)((const char*)at - (const char*)gpu_shared(0)); }
DEVICE Pack load_local(u32 at) { return *(const Pack*)((const char*)gpu_shared(0) + at); }
DEVICE void count_at(u32 at) { ++*(u32*)((char*)gpu_shared(0) + at); }

// Each lane accesses 8 or 16 bytes of a line.
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

DEVICE Pack load_once(const Pack* at) { return *at; }
DEVICE void store_once(Pack* at, Pack p) { *at = p; }

DEVICE void release(u64* at, u64 value) {
	__atomic_store_n(at, value, __ATOMIC_RELEASE);
	gpu_moved();
}
DEVICE u64 acquire(const u64* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }

// The thread sanitizer does not support fences. With it, relaxed accesses are ordered.
#ifdef __SANITIZE_THREAD__
enum { Load = __ATOMIC_ACQUIRE, Store = __ATOMIC_RELEASE };
#else
enum { Load = __ATOMIC_RELAXED, Store = __ATOMIC_RELAXED };
#endif
DEVICE u64 load_relaxed(const u64* at) { return __atomic_load_n(at, Load); }
DEVICE u32 load_relaxed(const u32* at) { return __atomic_load_n(at, Load); }
DEVICE Pack load_relaxed(const Pack* at) { return {load_relaxed(&at->a), load_relaxed(&at->b)}; }
DEVICE void store_relaxed(u64* at, u64 value) { __atomic_store_n(at, value, Store); }
DEVICE void store_relaxed(u32* at, u32 value) { __atomic_store_n(at, value, Store); }

DEVICE u32 swap_if(u32* at, u32 expected, u32 next) {
	__atomic_compare_exchange_n(at, &expected, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	return expected;
}
DEVICE void fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

DEVICE u64 clock() { return gpu_clock(); }
DEVICE void pause() { gpu_pause(); }
enum { PollsAtOnce = 8 }; // between two polls a round and a sleep may take milliseconds

DEVICE float from_bits(u32 bits) {
	float f;
	__builtin_memcpy(&f, &bits, 4);
	return f;
}
DEVICE bool is_nan(float f) { return f != f; }
// A GPU returns this NaN in place of every NaN. The NaN of a CPU may have other bits, so to_bits
// replaces them.
enum : u32 { Nan = 0x7fffffff };
DEVICE float nan() { return from_bits(Nan); }
DEVICE u32 to_bits(float f) {
	u32 bits;
	__builtin_memcpy(&bits, &f, 4);
	return is_nan(f) ? Nan : bits;
}
DEVICE double double_of(u64 bits) {
	double d;
	__builtin_memcpy(&d, &bits, 8);
	return d;
}
DEVICE u64 bits_of(double d) {
	u64 bits;
	__builtin_memcpy(&bits, &d, 8);
	return bits;
}

DEVICE float multiply(float a, float b) { return a * b; }
DEVICE double multiply(double a, double b) { return a * b; }

// minimum and maximum follow IEEE 754-2019: a NaN operand gives a NaN, and -0 is less than 0.
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

enum : u32 { SumBytes = 256 };
DEVICE void sum_row(u32, float& mine, float& most, bool, bool of_block, u32) {
	float group = gpu_maximum(most);
	gpu_sum(&mine, &most);
	if (!of_block) most = group;
}
DEVICE float maximum_of_16(float v) { return gpu_maximum(v); }

DEVICE float inverse_of_root(float f) { return 1 / __builtin_sqrtf(f); }
// multiply_add rounds once if the factors have at most 12 bits. Their product and sum are then exact
// in float64, or one of them is too small to matter.
DEVICE float multiply_add(float a, float b, float c) { return (float)((double)a * b + c); }
DEVICE float inverse(float f) { return 1 / f; }
template <int Divisor>
DEVICE float quotient_by(float f) {
	return f / Divisor;
}
DEVICE float magnitude(float f) { return from_bits(to_bits(f) & 0x7fffffff); }
#include <e4m3.h>

}  // namespace dev
