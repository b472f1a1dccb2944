// Pseudorandom numbers for test cases. The same round gives the same numbers.
#pragma once
#include <device.h>

namespace {

u64 scramble(u64 x) {
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9;
	x ^= x >> 27;
	x *= 0x94d049bb133111eb;
	return x ^ x >> 31;
}

struct Dice {
	u64 state;
	u64 below(u64 n) { return scramble(state += 0x9e3779b97f4a7c15) % n; }
};

}  // namespace
