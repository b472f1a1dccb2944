// Words of 8 bytes in buffers of any alignment and size.
#pragma once
#include <device.h>

// unit is the largest power of two up to 8 that an address is a multiple of.
DEVICE u32 unit(const void* at) {
	u64 a = (u64)at | 8;
	return (u32)(a & (~a + 1));
}

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

// load_word reads the word at an offset of a buffer of so many bytes; what lies behind it is 0.
DEVICE u64 load_word(const char* buffer, u64 offset, u64 bytes, u32 unit) {
	if (offset >= bytes) return 0;
	const char* at = buffer + offset;
	u64 left = bytes - offset;
	if (left >= 8) {
		if (unit == 8) return *(const u64*)at;
		if (unit == 4) return load_parts<u32>(at, 8);
		if (unit == 2) return load_parts<u16>(at, 8);
	}
	return load_parts<u8>(at, left < 8 ? (u32)left : 8);
}

// store_word writes what of a word lies in the buffer.
DEVICE void store_word(char* buffer, u64 offset, u64 bytes, u32 unit, u64 word) {
	if (offset >= bytes) return;
	char* at = buffer + offset;
	u64 left = bytes - offset;
	if (left >= 8) {
		if (unit == 8) {
			*(u64*)at = word;
			return;
		}
		if (unit == 4) return store_parts<u32>(at, word, 8);
		if (unit == 2) return store_parts<u16>(at, word, 8);
	}
	store_parts<u8>(at, word, left < 8 ? (u32)left : 8);
}
