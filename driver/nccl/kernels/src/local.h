// The local part of AllReduceRMSNorm, which follows the all-reduce, for rows of bfloat16. It adds the
// sums to the residual, rounds the result, normalizes it, multiplies it by the weights, and rounds again.
// Intermediate values are float32.
#pragma once
#include <guard.h>
#include <number.h>

// Local holds the arguments of these kernels. send holds the sums. All addresses are multiples of 16, and
// the length of a row is a multiple of 8 elements. recv may equal send.
struct Local {
	const char* send;
	char* residual;
	const char* weight;
	char* recv;
	// The word that reports whether the all-reduce has failed: Control.fault.
	const u32* fault;
	u32 rows, hidden;
	float epsilon;
	u32 unused;
};

// Rounds is the maximum number of packs of a row that a thread keeps in registers. LongRounds suffices
// for MaxHidden, but only one block of 512 threads fits on a multiprocessor then. With ShortRounds two
// blocks fit, which doubles the number of rows in flight.
enum : u32 { ShortRounds = 2, LongRounds = 4 };

DEVICE u64 add_words(u64 a, u64 b) {
	float x[4], y[4];
	BF16::unpack(a, x);
	BF16::unpack(b, y);
	for (int i = 0; i < 4; i++) x[i] += y[i];
	return BF16::pack(x);
}

DEVICE Pack add_packs(Pack a, Pack b) { return {add_words(a.a, b.a), add_words(a.b, b.b)}; }

DEVICE void add_squares(u64 word, float& squares) {
	float x[4];
	BF16::unpack(word, x);
	for (int i = 0; i < 4; i++) squares += x[i] * x[i];
}

DEVICE u64 scale_word(u64 word, u64 weights, float scale) {
	float x[4], w[4];
	BF16::unpack(word, x);
	BF16::unpack(weights, w);
	for (int i = 0; i < 4; i++) x[i] = x[i] * scale * w[i];
	return BF16::pack(x);
}

// The order in which the squares of a row are added depends only on its length, from which Local.Grid
// computes the number of threads. Each thread adds the squares of its packs to 0, one after the other, by
// fused multiply-add. Then values of threads at distances 16, 8, 4, 2 and 1 are added, and then the sums
// of warps. Kernels for short and for long rows use the same order.

// norm_rows normalizes the rows of the residual. With Adds it adds the sums first. If the all-reduce has
// failed, it poisons all outputs instead. Threads that read different fault words still take part in the
// same reductions over the block.
template <bool Adds, u32 Rounds>
DEVICE void norm_rows(const Local& call) {
	dev::next_may_launch();
	dev::await_previous();
	bool failed = Adds && dev::load_relaxed(call.fault) != None;
	u32 packs = call.hidden / 8, me = dev::thread(), step = dev::threads();
	for (u32 row = dev::block(); row < call.rows; row += dev::blocks()) {
		u64 from = (u64)row * packs;
		Pack sums[Rounds], kept[Rounds], weights[Rounds];
#pragma unroll
		for (u32 k = 0; k < Rounds; k++) {
			u32 i = me + k * step;
			if (i >= packs) break;
			if (Adds) sums[k] = ((const Pack*)call.send)[from + i];
			kept[k] = ((const Pack*)call.residual)[from + i];
			weights[k] = ((const Pack*)call.weight)[i];
		}
		float squares = 0;
#pragma unroll
		for (u32 k = 0; k < Rounds; k++) {
			u32 i = me + k * step;
			if (i >= packs) break;
			if (Adds) kept[k] = add_packs(sums[k], kept[k]);
			add_squares(kept[k].a, squares);
			add_squares(kept[k].b, squares);
			if (Adds) ((Pack*)call.residual)[from + i] = failed ? Pack{Poison, Poison} : kept[k];
		}
		float scale = dev::inverse_root(dev::sum_block(squares) / (float)call.hidden + call.epsilon);
#pragma unroll
		for (u32 k = 0; k < Rounds; k++) {
			u32 i = me + k * step;
			if (i >= packs) break;
			kept[k].a = scale_word(kept[k].a, weights[k].a, scale);
			kept[k].b = scale_word(kept[k].b, weights[k].b, scale);
			((Pack*)call.recv)[from + i] = failed ? Pack{Poison, Poison} : kept[k];
		}
	}
}

// norm_local runs the whole local part. For comparison, add_local and rms_local run its two halves.
template <u32 Rounds>
DEVICE void norm_local(const Local& call) { norm_rows<true, Rounds>(call); }
DEVICE void rms_local(const Local& call) { norm_rows<false, LongRounds>(call); }

DEVICE void add_local(const Local& call) {
	dev::next_may_launch();
	dev::await_previous();
	u64 packs = (u64)call.rows * call.hidden / 8, step = (u64)dev::blocks() * dev::threads();
	for (u64 i = (u64)dev::block() * dev::threads() + dev::thread(); i < packs; i += step) {
		Pack* kept = (Pack*)call.residual + i;
		*kept = add_packs(((const Pack*)call.send)[i], *kept);
	}
}
