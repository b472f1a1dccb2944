// The product of a layer for few sequences: what symmem bench decode measures the all-reduce behind. It
// takes as long as the weights take to be read, once; so they are to be under way all the time, also while
// what is ahead in the stream still runs, such as the all-reduce of the layer before. Weights depend on
// nothing; the input and the output wait for that.
//
// A block has 8 rows of weights at a time, a warp 256 columns of them, a lane 8 packs: four lanes have a
// row. Tensor cores multiply by 8 columns of two rows what they take for 16 rows. The upper 8 of these
// are the same rows once more, with other columns, and the sequences come twice, with the columns of the
// lower rows and with those of the upper ones: four at once. The other half of the sums means nothing. That
// way packs go into the tensor cores as they were loaded, and one sequence takes as long as four.
//
// A multiprocessor is filled with blocks that have their first weights in registers, 64 or 128 KiB, when
// the kernel ahead ends.
#pragma once
#include <device.h>

// Product are matrices of bfloat16, stored by rows on addresses of 16: the weights, rows x depth, the input,
// sequences x depth, and the output, sequences x rows. The depth is a multiple of 8.
struct Product {
	const Pack* weights;
	const u32* input;
	u16* output;
	u32 rows, depth, sequences;
	// In how many passes the warps of a block have all columns.
	u32 passes;
};

enum : u32 {
	TileRows = 8,
	TilePacks = 8,  // of each lane,
	TileStep = 4,   // so many packs apart
	TileColumns = 8 * TileStep * TilePacks,
};

// Tile is where a warp is: its first row, and where this lane's columns begin.
struct Tile {
	u32 row, column;
};

// Strip is what a lane has of a row of a tile. What lies outside of the matrix are zeros.
struct Strip {
	const Pack* from;
	u32 packs;

	MEMBER Pack load(u32 i) const { return dev::load_early(from + i * TileStep, i < packs); }
};

// Part is what a lane has of a product: in its warp's tiles of every so many groups of rows, in each pass.
struct Part {
	const Product& p;
	u32 row, quarter;   // of a tile
	u32 columns, span;  // of a block, in a pass and in all

	MEMBER Part(const Product& p) : p(p) {
		row = dev::thread() % 32 / 4;
		quarter = dev::thread() % 4;
		columns = dev::threads() / 32 * TileColumns;
		span = p.passes * columns;
	}

	MEMBER Tile first() const { return {dev::block() * TileRows, dev::thread() / 32 * TileColumns + quarter * 8}; }
	MEMBER bool last_pass(Tile at) const { return at.column + columns >= span; }
	MEMBER Tile next(Tile at) const {
		if (!last_pass(at)) return {at.row, at.column + columns};
		return {at.row + dev::blocks() * TileRows, at.column + columns - span};
	}

	// packs is how many of a lane's packs in a tile have columns of the matrix.
	MEMBER u32 packs(Tile at) const { return at.column < p.depth ? (p.depth - at.column + 31) / 32 : 0; }

	MEMBER Strip weights(Tile at) const {
		u32 r = at.row + row;
		return {p.weights + ((u64)r * p.depth + at.column) / 8, r < p.rows ? packs(at) : 0};
	}
};

// Input is what a lane brings of the columns of a tile, for one or two times four sequences: two of the four
// words of a pack, as lower or as upper row.
template <u32 Fours>
struct Input {
	u32 words[Fours][TilePacks][2];

	MEMBER void load(const Part& part, Tile at) {
		const Product& p = part.p;
		u32 packs = part.packs(at);
#pragma unroll
		for (u32 f = 0; f < Fours; f++) {
			u32 sequence = f * 4 + part.row % 4, has = sequence < p.sequences ? packs : 0;
			const u32* from = p.input + ((u64)sequence * p.depth + at.column) / 2 + part.row / 4;
#pragma unroll
			for (u32 i = 0; i < TilePacks * 2; i++)
				words[f][i / 2][i % 2] = dev::load_word(from + i / 2 * TileStep * 4 + i % 2 * 2, i / 2 < has);
		}
	}
};

// Sums are those of a group of rows so far. A lane has its row times two sequences, and the same of the upper
// rows; the first means something in the lower half of the lanes that have a row, the second in the other.
template <u32 Fours>
struct Sums {
	float all[Fours][4];

	MEMBER void add(const Input<Fours>& input, u32 i, Pack weights) {
#pragma unroll
		for (u32 f = 0; f < Fours; f++) dev::multiply(all[f], weights, input.words[f][i][0], input.words[f][i][1]);
	}

	// put adds up what lanes and warps have, stores it, and begins anew. The lower half of the lanes take the
	// first four sequences.
	MEMBER void put(const Part& part, u32 row, u32 turn) {
		bool upper = part.quarter >= 2;
		float pair[2], *first = all[0], *last = all[Fours - 1];
#pragma unroll
		for (u32 k = 0; k < 2; k++)
			pair[k] = (upper ? last[2 + k] : first[k]) + dev::of_lane(2, upper ? first[2 + k] : last[k]);
		*this = {};
		if (dev::sum_warps(turn, pair)) store(part.p, row + part.row, part.quarter * 2, pair);
	}

	MEMBER void store(const Product& p, u32 row, u32 sequence, const float* pair) const {
		if (row >= p.rows) return;
		u32 both = dev::to_bfloats(pair[0], pair[1]);
		u16* to = p.output + (u64)sequence * p.rows + row;
		if (sequence < p.sequences) to[0] = (u16)both;
		if (sequence + 1 < p.sequences) to[p.rows] = (u16)(both >> 16);
	}
};

// product has the weights of so many tiles under way at any time, and loads those of a later one as soon as a
// pack has done its part.
//
// The next kernel may come at once. It comes when every block of this one has come or ended, so it takes no
// place that a block of this one still needs, and this one goes on whatever comes behind it. So does the
// all-reduce ahead: since it let this one come, all its blocks have their places, and it may wait for other
// ranks while this one fills the GPU and waits for it. A kernel of another stream finds no place meanwhile.
//
// await_previous waits for one kernel. What those ahead of that have written is there, too, since every kernel
// calls it before it ends.
template <u32 Ahead, u32 Fours>
DEVICE void product(const Product& p) {
	dev::next_may_launch();
	Part part(p);
	Tile now = part.first(), ahead = now;
	Pack weights[Ahead][TilePacks];
#pragma unroll
	for (u32 i = 0; i < Ahead; i++, ahead = part.next(ahead)) {
		Strip strip = part.weights(ahead);
#pragma unroll
		for (u32 k = 0; k < TilePacks; k++) weights[i][k] = strip.load(k);
	}
	dev::await_previous();
	Input<Fours> input;
	input.load(part, now);
	Sums<Fours> sums = {};
	for (u32 turn = 0;;)
#pragma unroll
		for (u32 i = 0; i < Ahead; i++) {
			if (now.row >= p.rows) return;
			Strip strip = part.weights(ahead);
#pragma unroll
			for (u32 k = 0; k < TilePacks; k++) {
				sums.add(input, k, weights[i][k]);
				weights[i][k] = strip.load(k);
			}
			if (part.last_pass(now)) sums.put(part, now.row, turn++);
			now = part.next(now);
			ahead = part.next(ahead);
			if (p.passes > 1) input.load(part, now);
		}
}
