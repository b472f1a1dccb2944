// Bulk norm kernels implement norms of many rows in symmetric memory in one kernel: AllReduceRMSNorm for 2
// ranks, each of which reads all rows of its peer, and ReduceScatterRMSNorm for 2 and 4 ranks, each of which
// reads its own rows from all ranks. A block normalizes a row while its next row crosses the links. A thread
// has at most one pack of each row. Results are bitwise equal to those of the other norm kernels.
#pragma once
#include <barrier.h>
#include <norm.h>

struct BulkNorm : Norm {
	// Each rank's input, at its address in this process. In a scatter, sendAt and send begin at the rows of
	// this rank.
	const char* sendAt[MaxRanks];
};

// BlockRows holds the state of a thread that normalizes the rows of its block.
template <class N, bool Quantizes>
struct BlockRows {
	const BulkNorm& call;
	Pack weight;
	float factor;
	Pack* kept;       // a row in shared memory
	Pack* residual;
	u32 packs, me;
	bool used;        // this thread has a pack

	MEMBER BlockRows(const BulkNorm& call) : call(call) {
		weight = first_weights(call);
		factor = given_factor<Quantizes>(call);
		kept = (Pack*)dev::shared<RowBytes + dev::SumBytes>();
		residual = (Pack*)call.residual;
		packs = call.hidden / 8;
		me = dev::thread();
		used = me < packs;
	}

	// pack returns the index of the thread's pack of a row.
	MEMBER u64 pack(u32 row) const { return (u64)row * packs + me; }

	// norm normalizes a row of the new residual. It may overwrite the previous row in shared memory, because
	// all threads of the block have read that row before the last barrier of norm_row.
	MEMBER void norm(u32 row, Pack sums) const {
		if (used) {
			residual[pack(row)] = sums;
			kept[me] = sums;
		}
		dev::sync_block();
		norm_row<N, Quantizes>(call, row, kept, weight, factor, true);
	}
};

// load_others loads a pack of each other rank.
template <int W>
DEVICE void load_others(const BulkNorm& call, u64 pack, Pack* got) {
	if constexpr (W == 2) {
		// sum_packs uses mine instead of got[call.rank].
		got[0] = got[1] = dev::load_once((const Pack*)call.sendAt[1 - call.rank] + pack);
	} else {
#pragma unroll
		for (int r = 0; r < W; r++)
			if (r != call.rank) got[r] = dev::load_once((const Pack*)call.sendAt[r] + pack);
	}
}

// The output of norm_pull must not be memory that peers read, unless only the quantized output is written.
template <class N, int W, bool Quantizes>
DEVICE void norm_pull(const BulkNorm& call) {
	Prologue prologue = begin(call);
	BlockRows<N, Quantizes> rows(call);
	const Pack* own = (const Pack*)call.send;
	u32 row = dev::block(), step = dev::blocks();
	Pack mine = {}, got[W] = {}, old = {};
	bool more = rows.used && row < call.rows;
	if (more) {
		mine = dev::load_once(own + rows.pack(row));
		old = dev::load_once(rows.residual + rows.pack(row));
	}
	bool ok = await_peers(call, prologue);
	if (ok && more) load_others<W>(call, rows.pack(row), got);
#pragma unroll 1
	for (; ok && row < call.rows; row += step) {
		Pack sums = plus<N>(sum_packs<N, W>(call, mine, got), old);
		if (rows.used && row + step < call.rows) {
			u64 next = rows.pack(row + step);
			load_others<W>(call, next, got);
			mine = dev::load_once(own + next);
			old = dev::load_once(rows.residual + next);
		}
		rows.norm(row, sums);
	}
	if (ok) ok = await_done(call, prologue.epoch());
	if (!ok) {
		retract_header(call, prologue);
#pragma unroll 1
		for (row = dev::block(); row < call.rows; row += step) {
			poison_row(call, row);
			poison_sums(call, row);
		}
	}
	count(call, prologue.epoch());
}
