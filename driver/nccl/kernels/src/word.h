// Access to words of 8 bytes in buffers of any alignment and size.
#pragma once
#include <device.h>

// unit returns the largest power of two that divides an address, but at most sizeof(T).
template <class T>
DEVICE u32 unit(const void* at) {
	u64 a = (u64)at | sizeof(T);
	return (u32)(a & (~a + 1));
}

// load_parts and store_parts access the first bytes of a word as elements of type E.
template <class E>
DEVICE u64 load_parts(const char* at, u32 bytes) {
	u64 word = 0;
#pragma unroll
	for (u32 i = 0; i < 8 / sizeof(E); i++)
		if ((i + 1) * sizeof(E) <= bytes) word |= (u64)((const E*)at)[i] << 8 * sizeof(E) * i;
	return word;
}

template <class E>
DEVICE void store_parts(char* at, u64 word, u32 bytes) {
#pragma unroll
	for (u32 i = 0; i < 8 / sizeof(E); i++)
		if ((i + 1) * sizeof(E) <= bytes) ((E*)at)[i] = (E)(word >> 8 * sizeof(E) * i);
}

// load_odd and store_odd handle words that are not aligned to 8 bytes or extend beyond the end of a
// buffer. The load returns 0 for bytes beyond the end. The functions are not inlined, which keeps the
// common case short.
NOINLINE u64 load_odd(const char* at, u64 left, u32 unit) {
	if (left >= 8 && unit >= 8) return *(const u64*)at;
	if (left >= 8 && unit == 4) return load_parts<u32>(at, 8);
	if (left >= 8 && unit == 2) return load_parts<u16>(at, 8);
	return load_parts<u8>(at, left < 8 ? (u32)left : 8);
}
NOINLINE void store_odd(char* at, u64 word, u64 left, u32 unit) {
	if (left >= 8 && unit >= 8) return (void)(*(u64*)at = word);
	if (left >= 8 && unit == 4) return store_parts<u32>(at, word, 8);
	if (left >= 8 && unit == 2) return store_parts<u16>(at, word, 8);
	store_parts<u8>(at, word, left < 8 ? (u32)left : 8);
}
