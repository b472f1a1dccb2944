// What is left to do after an all-reduce of its own: residual and RMSNorm on one GPU. It is what norm.h is
// measured against, and works out the same numbers.
#pragma once
#include <norm.h>

// Local are rows of sums, and what becomes of them. All buffers lie on addresses of 16.
struct Local {
	const char* send;
	char* residual;
	const char* weight;
	char* recv;
	u32 rows, hidden;
	float epsilon;
	u32 unused;
};

// A thread has at most so many packs of a row, in registers: 512 threads have those of MaxHidden.
enum : u32 { LocalRounds = 4 };

// norm_local has a block for a row.
DEVICE void norm_local(const Local& call) {
	dev::next_may_launch();
	dev::await_previous();
	u32 packs = call.hidden / 8, me = dev::thread(), step = dev::threads();
	for (u32 row = dev::block(); row < call.rows; row += dev::blocks()) {
		u64 from = (u64)row * packs;
		Pack sums[LocalRounds], kept[LocalRounds], weights[LocalRounds];
#pragma unroll
		for (u32 k = 0; k < LocalRounds; k++) {
			u32 i = me + k * step;
			if (i >= packs) break;
			sums[k] = ((const Pack*)call.send)[from + i];
			kept[k] = ((const Pack*)call.residual)[from + i];
			weights[k] = ((const Pack*)call.weight)[i];
		}
		float squares = 0;
#pragma unroll
		for (u32 k = 0; k < LocalRounds; k++) {
			u32 i = me + k * step;
			if (i >= packs) break;
			kept[k].a = add_words(sums[k].a, kept[k].a, squares);
			kept[k].b = add_words(sums[k].b, kept[k].b, squares);
			((Pack*)call.residual)[from + i] = kept[k];
		}
		float scale = dev::inverse_root(dev::sum_block(squares) / (float)call.hidden + call.epsilon);
#pragma unroll
		for (u32 k = 0; k < LocalRounds; k++) {
			u32 i = me + k * step;
			if (i >= packs) break;
			kept[k].a = scale_word(kept[k].a, weights[k].a, scale);
			kept[k].b = scale_word(kept[k].b, weights[k].b, scale);
			((Pack*)call.recv)[from + i] = kept[k];
		}
	}
}
