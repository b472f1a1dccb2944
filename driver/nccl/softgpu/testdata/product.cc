// The products of package kernels against plain loops: all numbers of sequences, rows and columns that are
// no multiple of anything but 8, grids and blocks of any size. The argument is the number of cases.
#include <product.h>
extern "C" {
#include "scene.h"
}
#include "dice.h"

namespace {

// Case is a product, with what lies in front of and behind its output.
struct Case {
	u64 round;
	u32 rows, depth, sequences, grid, warps;
};

Case case_of(u64 round) {
	Dice dice = {round * 1000};
	auto below = [&](u64 n) { return (u32)dice.below(n); };
	Case c = {round};
	c.rows = 1 + below(below(2) == 0 ? 70 : 20);
	c.depth = 8 * (1 + below(below(2) == 0 ? 100 : 40));
	c.sequences = 1 + below(8);
	c.grid = 1 + below(5);
	c.warps = 1 + below(4);
	return c;
}

// number is a small whole one, so that sums are exact in any order.
float number(u64 seed, u64 i) { return (float)((int)(scramble(seed << 32 ^ i) % 9) - 4); }

u16 bits_of(float f) { return (u16)dev::to_bfloats(f, 0); }

enum : u64 { Margin = 64, Untouched = 0x5a5a };

// Places of the matrices in the segment of the rank.
struct Matrices {
	u16 *weights, *input, *output;
};

Matrices fill(const Case& c, struct rank* r) {
	char* base = (char*)r->segment.at;
	Matrices m = {(u16*)base, (u16*)(base + MIB), (u16*)(base + 2 * MIB)};
	memset(base, 0xff, 3 * MIB);  // what is read beside a matrix is no number
	for (u64 i = 0; i < (u64)c.rows * c.depth; i++) m.weights[i] = bits_of(number(c.round * 2, i));
	for (u64 i = 0; i < (u64)c.sequences * c.depth; i++) m.input[i] = bits_of(number(c.round * 2 + 1, i));
	for (u64 i = 0; i < (u64)c.sequences * c.rows + 2 * Margin; i++) m.output[i] = Untouched;
	m.output += Margin;
	return m;
}

float expected(const Case& c, u32 sequence, u32 row) {
	float sum = 0;
	for (u32 i = 0; i < c.depth; i++)
		sum += number(c.round * 2, (u64)row * c.depth + i) * number(c.round * 2 + 1, (u64)sequence * c.depth + i);
	return sum;
}

void verify(const Case& c, const u16* output) {
	bool right = true;
	for (u32 s = 0; s < c.sequences; s++)
		for (u32 row = 0; row < c.rows; row++)
			right = right && output[(u64)s * c.rows + row] == bits_of(expected(c, s, row));
	for (u64 i = 1; i <= Margin; i++)
		right = right && output[-(long)i] == Untouched && output[(u64)c.sequences * c.rows + i - 1] == Untouched;
	if (right) return;
	fprintf(stderr, "round %llu is wrong: %u rows of %u, %u sequences, grid %u of %u warps\n", c.round, c.rows,
		c.depth, c.sequences, c.grid, c.warps);
	exit(1);
}

void play_case(struct rank* r, CUmodule module, const Case& c) {
	Matrices m = fill(c, r);
	Product p = {(const Pack*)m.weights, (const u32*)m.input, m.output, c.rows, c.depth, c.sequences};
	p.passes = (c.depth + c.warps * TileColumns - 1) / (c.warps * TileColumns);
	CUfunction function;
	MUST(cuModuleGetFunction(&function, module, c.sequences <= 4 ? "product_bf16_4" : "product_bf16_8"));
	void* params[] = {&p};
	MUST(cuLaunchKernel(function, c.grid, 1, 1, 32 * c.warps, 1, 1, 0, r->stream, params, NULL));
	sync_rank(r);
	verify(c, m.output);
}

void scene_products(struct rank* r) {
	CUmodule module;
	MUST(cuModuleLoadData(&module, "any image"));
	for (u64 round = 0; round < *(u64*)r->argument; round++) play_case(r, module, case_of(round));
	MUST(cuModuleUnload(module));
}

}  // namespace

int main(int count, char** words) {
	CHECK(count == 2);
	u64 rounds = strtoull(words[1], NULL, 10);
	play(1, scene_products, &rounds);
	return 0;
}
