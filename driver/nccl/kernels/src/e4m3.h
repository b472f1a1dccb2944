// Conversion to float8 (e4m3) for devices without an instruction for it. Namespace dev includes it.

// e4m3_of rounds to nearest even. Values beyond 448 become 448.
DEVICE u32 e4m3_of(float f) {
	u32 bits = to_bits(f), sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
	if (size > 0x7f800000) return 0x7f;
	if (size >= 0x43e00000) return sign | 0x7e;
	// Below 2^-6 the unit is 2^-9, as that of a float32 from 2^14 on.
	if (size < 0x3c800000) return sign | (to_bits(from_bits(size) + 16384.0f) - to_bits(16384.0f));
	return sign | (((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3));
}
DEVICE u64 to_e4m3(const float* v) {
	u64 all = 0;
	for (int i = 0; i < 8; i++) all |= (u64)e4m3_of(v[i]) << 8 * i;
	return all;
}
