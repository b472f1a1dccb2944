// Kernels that test the device functions. device.cc launches them and checks their results.
#include "probe.h"

DEVICE u64& mine(const Probe& p) { return p.out[dev::block() * dev::threads() + dev::thread()]; }

KERNEL probe_place(const __grid_constant__ Probe p) {
	u64 blocks = (u64)dev::block() << 48 | (u64)dev::blocks() << 32;
	mine(p) = blocks | dev::threads() << 16 | dev::thread();
}

// Each thread passes a number to the next thread of its block, until it has had the number of every
// thread.
KERNEL probe_sync(const __grid_constant__ Probe p) {
	u64 held = dev::thread(), sum = 0;
	for (u32 i = 0; i < dev::threads(); i++) {
		mine(p) = held;
		dev::sync_block();
		held = p.out[dev::block() * dev::threads() + (dev::thread() + 1) % dev::threads()];
		dev::sync_block();
		sum += held;
	}
	mine(p) = sum;
}

// Threads below the argument end at once. The others vote, first with the same value and later with
// different values.
KERNEL probe_votes(const __grid_constant__ Probe p) {
	u32 t = dev::thread();
	if (t < p.argument) return;
	u64 found = dev::all_warp(true);
	found |= (u64)dev::all_warp(t % 32 != 31) << 1;
	found |= (u64)dev::any_warp(t % 32 == 31) << 2;
	found |= (u64)dev::any_warp(false) << 3;
	found |= (u64)dev::all_block(true) << 4;
	found |= (u64)dev::all_block(t + 1 != dev::threads()) << 5;
	found |= (u64)dev::all_block(true) << 6;
	mine(p) = found;
}

KERNEL probe_sum(const __grid_constant__ Probe p) {
	float sum = dev::sum_block((float)(dev::thread() + p.argument));
	mine(p) = dev::to_bits(sum) + (u64)dev::to_bits(dev::sum_block(0.1f)) * (1ull << 32);
}

enum { Rounds = 50, Ahead = 20 };

// pass_lines repeatedly sends many lines from the first block to the second, which confirms them
// with a word. All words of a line contain the number of the round.
template <class Part, class Make, class Number>
DEVICE void pass_lines(const Probe& p, Make make, Number number) {
	u32 lane = dev::thread() % 32, warp = dev::thread() / 32, warps = dev::threads() / 32;
	char* lines = (char*)p.out + 4096;
	u64* acks = p.out + 256;
	u64 wrong = 0, size = 32 * sizeof(Part);
	for (u64 round = 1; round <= Rounds; round++) {
		Part* at = (Part*)(lines + warp * Ahead * size) + lane;
		if (dev::block() == 0) {
			for (u32 i = 0; i < Ahead; i++) dev::store_line(at + i * 32, make(round));
			while (dev::any_warp(dev::acquire(&acks[warp]) < round)) dev::pause();
			continue;
		}
		for (bool all = false; !dev::all_warp(all); dev::pause()) {
			all = true;
			for (u32 i = 0; i < Ahead; i++) {
				u64 got = number(dev::load_line(at + i * 32)), last = 128 / sizeof(Part) - 1;
				bool flagged = lane % (last + 1) == last;
				if (flagged && got != round) all = false;
				// Each word of a line must be at least as new as the last word.
				if (!flagged && got < round - 1) wrong++;
			}
		}
		for (u32 i = 0; i < Ahead; i++) wrong += number(dev::load_line(at + i * 32)) != round;
		if (!dev::all_warp(wrong == 0) || lane == 0) dev::release(&acks[warp], round);
	}
	if (dev::block() == 1) p.out[warps + dev::thread()] = wrong;
}

KERNEL probe_lines_8(const __grid_constant__ Probe p) {
	pass_lines<u64>(p, [](u64 v) { return v; }, [](u64 v) { return v; });
}
KERNEL probe_lines_16(const __grid_constant__ Probe p) {
	pass_lines<Pack>(p, [](u64 v) { return Pack{v, v}; }, [](Pack v) { return v.a == v.b ? v.a : 0; });
}

// The argument is the first float to convert. Every thread converts 64 floats.
KERNEL probe_to_half(const __grid_constant__ Probe p) {
	u32 from = (u32)p.argument + (dev::block() * dev::threads() + dev::thread()) * 64;
	u16* out = (u16*)p.out + (from - (u32)p.argument);
	for (u32 i = 0; i < 64; i++) out[i] = dev::to_half(dev::from_bits(from + i));
}
KERNEL probe_from_half(const __grid_constant__ Probe p) {
	u32 h = dev::block() * dev::threads() + dev::thread();
	((u32*)p.out)[h] = dev::to_bits(dev::from_half((u16)h));
}
KERNEL probe_to_bfloat(const __grid_constant__ Probe p) {
	u32 bits = (dev::block() * dev::threads() + dev::thread()) * 0x10001u * 3;
	mine(p) = (u64)bits << 32 | dev::to_bfloats(dev::from_bits(bits), dev::from_bits(bits + 0x8000));
}

// Each of 8 x 8 threads compares a pair of special values.
KERNEL probe_extremes(const __grid_constant__ Probe p) {
	const u32 hard[] = {0x80000000, 0,          0x7f800000, 0xff800000,
	                    0x3f800000, 0xbf800000, 0x7fc00000, 0xff812345};
	float a = dev::from_bits(hard[dev::thread() / 8]), b = dev::from_bits(hard[dev::thread() % 8]);
	mine(p) = (u64)dev::to_bits(dev::minimum(a, b)) << 32 | dev::to_bits(dev::maximum(a, b));
}

// Each thread writes 1, waits for the word after the words of all threads, and then writes the
// argument.
KERNEL probe_wait(const __grid_constant__ Probe p) {
	dev::release(&mine(p), 1);
	while (dev::acquire(&p.out[1024]) == 0) dev::pause();
	mine(p) = p.argument;
}

// Every thread adds 1 to one number, in any order.
KERNEL probe_swap(const __grid_constant__ Probe p) {
	u32* number = (u32*)p.out;
	for (u32 seen = dev::load_relaxed(number), before;; seen = before) {
		before = dev::swap_if(number, seen, seen + 1);
		if (before == seen) break;
		dev::pause();
	}
}
