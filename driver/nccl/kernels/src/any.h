// Reductions for kernels of any type. They support every operation in every order.
#pragma once
#include <number.h>

// Any stands for the element type that a call names at run time.
struct Any {};

template <class N>
constexpr bool is_any = false;
template <>
constexpr bool is_any<Any> = true;

// F64 packs every NaN as the canonical NaN, in which all bits except the sign are set. The device does
// the same for float32, but keeps the NaN of an operand for float64.
struct F64 {
	typedef double Value;
	typedef u64 Element;
	enum { Values = 1 };
	DEVICE void unpack(u64 word, double* v) { v[0] = dev::double_of(word); }
	DEVICE u64 pack(const double* v) { return v[0] != v[0] ? ~0ull >> 1 : dev::bits_of(v[0]); }
};

struct I64 {
	typedef long long Value;
	typedef u64 Element;
	enum { Values = 1 };
	DEVICE void unpack(u64 word, long long* v) { v[0] = (long long)word; }
	DEVICE u64 pack(const long long* v) { return (u64)v[0]; }
};

// Bytes are computed as 32-bit integers until they are packed.
template <class Byte>
struct Bytes {
	typedef int Value;
	typedef u8 Element;
	enum { Values = 8 };
	DEVICE void unpack(u64 word, int* v) {
		for (int i = 0; i < 8; i++) v[i] = (Byte)(word >> 8 * i);
	}
	DEVICE u64 pack(const int* v) {
		u64 word = 0;
		for (int i = 0; i < 8; i++) word |= (u64)(u8)v[i] << 8 * i;
		return word;
	}
};
typedef Bytes<signed char> I8;
typedef Bytes<u8> U8;

DEVICE double add(double a, double b) { return a + b; }
DEVICE long long add(long long a, long long b) { return (long long)((u64)a + (u64)b); }
DEVICE long long minimum(long long a, long long b) { return a < b ? a : b; }
DEVICE long long maximum(long long a, long long b) { return a > b ? a : b; }
// A NaN operand gives a NaN, and -0 is less than +0.
DEVICE double minimum(double a, double b) {
	if (a == b) return dev::double_of(dev::bits_of(a) | dev::bits_of(b));
	return a < b || a != a ? a : b;
}
DEVICE double maximum(double a, double b) {
	if (a == b) return dev::double_of(dev::bits_of(a) & dev::bits_of(b));
	return a > b || a != a ? a : b;
}
DEVICE float times(float a, float b) { return a * b; }
DEVICE double times(double a, double b) { return a * b; }
DEVICE int times(int a, int b) { return (int)((u32)a * (u32)b); }
DEVICE long long times(long long a, long long b) { return (long long)((u64)a * (u64)b); }

// whole reports whether N is an integer type. All orders of its reductions give the same result.
template <class N>
constexpr bool whole = (typename N::Value)0.5 == 0;

// join combines the total t of a set of ranks with the total o of later ranks.
template <class N>
DEVICE void join(Total<N>& t, u32 op, const Total<N>& o) {
#pragma unroll
	for (int i = 0; i < N::Values; i++)
		t.v[i] = op == Sum ? add(t.v[i], o.v[i]) : op == Prod ? times(t.v[i], o.v[i])
			: op == Min ? minimum(t.v[i], o.v[i]) : maximum(t.v[i], o.v[i]);
}

// scaled stores the first word of a total, like first, and multiplies floating-point elements by scale.
// The scale is below 1 if an average is computed again.
template <class N>
DEVICE void scaled(Total<N>& t, u64 word, typename N::Value scale) {
	first(t, word);
	if constexpr (!whole<N>)
#pragma unroll
		for (int i = 0; i < N::Values; i++) t.v[i] = dev::multiply(t.v[i], scale);
}

// as_tree combines neighbouring ranks, then neighbouring pairs, and then the halves of 8 ranks. The
// number of ranks is 2, 4 or 8.
template <class N, int W>
DEVICE void as_tree(Total<N>& t, const Call& call, const u64* words, typename N::Value scale) {
	Total<N> all[W];
#pragma unroll
	for (int r = 0; r < W; r++)
		if (r < call.ranks) scaled(all[r], words[r], scale);
#pragma unroll
	for (int step = 1; step < W; step *= 2)
#pragma unroll
		for (int r = 0; r < W; r += 2 * step) {
			if (r + step >= call.ranks) break;
			if (call.op % Tree == Sum) join(all[r], Sum, all[r + step]);
			else join(all[r], Prod, all[r + step]);
			if (sizeof(typename N::Element) == 2 && (call.op & Rounded) != 0) first(all[r], N::pack(all[r].v));
		}
	t = all[0];
}

// in_order combines the ranks one after the other.
template <class N, int W>
DEVICE void in_order(Total<N>& t, const Call& call, const u64* words, typename N::Value scale) {
	scaled(t, words[0], scale);
#pragma unroll
	for (int r = 1; r < W; r++) {
		if (r >= call.ranks) break;
		Total<N> o;
		scaled(o, words[r], scale);
		u32 op = call.op % Tree;
		if (op == Sum) join(t, Sum, o);
		else if (op == Prod) join(t, Prod, o);
		else if (op == Min) join(t, Min, o);
		else join(t, Max, o);
	}
}

// combined reduces one word over all ranks. All threads take the same branches, unless an average
// overflows.
template <class N, int W>
DEVICE u64 combined(const Call& call, const u64* words) {
	typedef typename N::Value V;
	Total<N> t;
	if constexpr (whole<N>) {
		in_order<N, W>(t, call, words, 1);
		if (call.divisor != 1) first(t, N::pack(t.v));  // bytes wrap before they are divided
	} else {
		Total<N> sum;
		V scale = 1;
#pragma unroll 1
		for (bool again = false;; again = true) {
			if ((call.op & Tree) != 0) as_tree<N, W>(t, call, words, scale);
			else in_order<N, W>(t, call, words, scale);
			if (again) return choose(sum, t, call.ranks);
			if (call.divisor == 1 || finite(t)) break;
			sum = t;
			scale = scale_of<V>(call.ranks);
		}
	}
	return result<N, W>(t, call.divisor);
}

// combined_any calls combined with the type of the call.
template <int W>
DEVICE u64 combined_any(const Call& call, const u64* words) {
	switch (call.op / TypeUnit) {
	case TypeF32: return combined<F32, W>(call, words);
	case TypeF64: return combined<F64, W>(call, words);
	case TypeF16: return combined<F16, W>(call, words);
	case TypeBF16: return combined<BF16, W>(call, words);
	case TypeI8: return combined<I8, W>(call, words);
	case TypeU8: return combined<U8, W>(call, words);
	case TypeI32: return combined<I32, W>(call, words);
	default: return combined<I64, W>(call, words);
	}
}

DEVICE u32 type_bytes(const Call& call) {
	u32 type = call.op / TypeUnit;
	if (type == TypeI8 || type == TypeU8) return 1;
	if (type == TypeF16 || type == TypeBF16) return 2;
	return type == TypeF32 || type == TypeI32 ? 4 : 8;
}

// element_at loads one element, and put_element_at stores one.
DEVICE u64 element_at(const Call& call, const char* at) {
	switch (type_bytes(call)) {
	case 1: return *(const volatile u8*)at;
	case 2: return *(const volatile u16*)at;
	case 4: return *(const volatile u32*)at;
	default: return *(const volatile u64*)at;
	}
}
DEVICE void put_element_at(const Call& call, char* at, u64 word) {
	switch (type_bytes(call)) {
	case 1: *(volatile u8*)at = (u8)word; break;
	case 2: *(volatile u16*)at = (u16)word; break;
	case 4: *(volatile u32*)at = (u32)word; break;
	default: *(volatile u64*)at = word;
	}
}
