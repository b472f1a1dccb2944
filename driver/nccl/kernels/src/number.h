// Reductions of words of 8 bytes. Sums of 16-bit types are computed in float32, in the order of ranks. No
// multiplication is fused with an addition. Every NaN in a result has the bits of the device's canonical
// NaN, in which all bits except the sign are set. That also applies after rounding to 16 bits.
#pragma once
#include <call.h>

struct F32 {
	typedef float Value;
	typedef u32 Element;
	enum { Values = 2 };
	DEVICE void unpack(u64 word, float* v) {
		v[0] = dev::from_bits((u32)word);
		v[1] = dev::from_bits((u32)(word >> 32));
	}
	DEVICE u64 pack(const float* v) { return (u64)dev::to_bits(v[1]) << 32 | dev::to_bits(v[0]); }
};

struct F16 {
	typedef float Value;
	typedef u16 Element;
	enum { Values = 4 };
	DEVICE void unpack(u64 word, float* v) {
		for (int i = 0; i < 4; i++) v[i] = dev::from_half((u16)(word >> 16 * i));
	}
	DEVICE u64 pack(const float* v) {
		u64 word = 0;
		for (int i = 0; i < 4; i++) word |= (u64)dev::to_half(v[i]) << 16 * i;
		return word;
	}
	DEVICE float rounded(float v) { return dev::from_half(dev::to_half(v)); }
};

struct BF16 {
	typedef float Value;
	typedef u16 Element;
	enum { Values = 4 };
	DEVICE void unpack(u64 word, float* v) {
		u32 low = (u32)word, high = (u32)(word >> 32);
		v[0] = dev::from_bits(low << 16);
		v[1] = dev::from_bits(low & 0xffff0000);
		v[2] = dev::from_bits(high << 16);
		v[3] = dev::from_bits(high & 0xffff0000);
	}
	DEVICE u64 pack(const float* v) {
		return (u64)dev::to_bfloats(v[2], v[3]) << 32 | dev::to_bfloats(v[0], v[1]);
	}
	DEVICE float rounded(float v) { return dev::from_bits(dev::to_bfloats(v, v) << 16); }
};

struct I32 {
	typedef int Value;
	typedef u32 Element;
	enum { Values = 2 };
	DEVICE void unpack(u64 word, int* v) {
		v[0] = (int)(u32)word;
		v[1] = (int)(u32)(word >> 32);
	}
	DEVICE u64 pack(const int* v) { return (u64)(u32)v[1] << 32 | (u32)v[0]; }
};

DEVICE float add(float a, float b) { return a + b; }
DEVICE float minimum(float a, float b) { return dev::minimum(a, b); }
DEVICE float maximum(float a, float b) { return dev::maximum(a, b); }
DEVICE int add(int a, int b) { return (int)((u32)a + (u32)b); }
DEVICE int minimum(int a, int b) { return a < b ? a : b; }
DEVICE int maximum(int a, int b) { return a > b ? a : b; }

// Total accumulates one word over ranks, in the order of ranks.
template <class N>
struct Total {
	typename N::Value v[N::Values];
};

template <class N>
DEVICE void first(Total<N>& t, u64 word) {
	N::unpack(word, t.v);
}

template <class N>
DEVICE void next(Total<N>& t, u32 op, u64 word) {
	typename N::Value w[N::Values];
	N::unpack(word, w);
	// All threads take the same branch.
	if (op == Sum)
#pragma unroll
		for (int i = 0; i < N::Values; i++) t.v[i] = add(t.v[i], w[i]);
	else if (op == Min)
#pragma unroll
		for (int i = 0; i < N::Values; i++) t.v[i] = minimum(t.v[i], w[i]);
	else
#pragma unroll
		for (int i = 0; i < N::Values; i++) t.v[i] = maximum(t.v[i], w[i]);
}

// quotient divides by the number of ranks. If that is W, a power of two, a product with the reciprocal
// gives the same result in a tenth of the time.
template <int W>
DEVICE float quotient(float v, u32 n) {
	return W < MaxRanks || n == W ? dev::multiply(v, 1.0f / W) : v / (float)(int)n;
}
template <int W>
DEVICE double quotient(double v, u32 n) {
	return W < MaxRanks || n == W ? dev::multiply(v, 1.0 / W) : v / (double)(int)n;
}
template <int W>
DEVICE int quotient(int v, u32 n) { return v / (W < MaxRanks ? W : (int)n); }
template <int W>
DEVICE long long quotient(long long v, u32 n) { return v / (W < MaxRanks ? W : (int)n); }

template <class N, int W>
DEVICE u64 result(Total<N>& t, u32 divisor) {
	if (divisor != 1)
#pragma unroll
		for (int i = 0; i < N::Values; i++) t.v[i] = quotient<W>(t.v[i], divisor);
	return N::pack(t.v);
}

// overflows reports whether the sum of an average can overflow although the average does not. If such a
// sum is infinite or NaN, the average is computed again from elements scaled by a power of two (see
// docs/reference/deterministic.md). Other averages are unchanged. Integers wrap instead. Float32 sums of
// F16 elements do not overflow unless each step is rounded.
template <class N>
constexpr bool overflows = false;
template <>
constexpr bool overflows<F32> = true;
template <>
constexpr bool overflows<BF16> = true;

DEVICE bool finite(float v) { return (dev::to_bits(v) & 0x7f800000) != 0x7f800000; }
DEVICE bool finite(double v) { return (dev::bits_of(v) >> 52 & 0x7ff) != 0x7ff; }

template <class N>
DEVICE bool finite(const Total<N>& t) {
	bool all = true;
#pragma unroll
	for (int i = 0; i < N::Values; i++) all = all && finite(t.v[i]);
	return all;
}

// scale_of returns the largest power of two that is at most 1/n.
template <class V>
DEVICE V scale_of(u32 n) {
	V scale = 1;
	for (u32 i = 1; i < n; i *= 2) scale /= 2;
	return scale;
}

// choose returns the averages of a word. Where a sum is not finite, it uses the sum of scaled elements.
template <class N>
DEVICE u64 choose(const Total<N>& sum, const Total<N>& scaled, u32 ranks) {
	typedef typename N::Value V;
	V n = (V)(int)ranks, rest = n * scale_of<V>(ranks), v[N::Values];
	for (int i = 0; i < N::Values; i++) v[i] = finite(sum.v[i]) ? sum.v[i] / n : scaled.v[i] / rest;
	return N::pack(v);
}

template <int W>
struct Words {
	u64 of[W];
};

// average_again computes a word of averages over all ranks, in the order of ranks. It is not inlined,
// which keeps the common case short.
template <class N, int W>
NOINLINE u64 average_again(Words<W> words, u32 ranks) {
	typedef typename N::Value V;
	V scale = scale_of<V>(ranks), v[N::Values];
	Total<N> sum, scaled;
#pragma unroll
	for (int r = 0; r < W; r++) {
		if (r >= ranks) break;
		N::unpack(words.of[r], v);
		for (int i = 0; i < N::Values; i++) {
			V less = dev::multiply(v[i], scale);
			sum.v[i] = r == 0 ? v[i] : add(sum.v[i], v[i]);
			scaled.v[i] = r == 0 ? less : add(scaled.v[i], less);
		}
	}
	return choose(sum, scaled, ranks);
}
