// All-reduce, residual and RMSNorm in one kernel, of rows of bfloat16. The sum is rounded as AllReduce
// rounds it; the residual gets the sum added and is rounded; its norm times the weights is rounded. In
// between numbers are float32. The data go in lines as those of line.h do, but a row belongs to a block,
// and no chunk of lines has data of two rows.
#pragma once
#include <line.h>

// The kernels of this file and of local.h are compiled for blocks of 512 threads at most.
#ifdef __CUDACC__
#define BLOCKS_OF_512 __launch_bounds__(512)
#else
#define BLOCKS_OF_512
#endif

// Norm is a call whose send is the input and recv the output; bytes is the size of a row, a multiple of
// 16. All buffers lie on addresses of 8. The output may be the input.
struct Norm : Call {
	char* residual;
	const char* weight;
	u32 rows, hidden;
	float epsilon;
	u32 unused;
};

// A thread has so many words of a row in registers: those of 9000 elements in 512 threads. What longer rows
// have besides is read again.
enum : u32 { Rounds = 5 };

// Place is what a thread knows of its place in the rows of its block: it has a word of each chunk of its
// warp, or moves a flag. The last warp of the grid has no chunks.
struct Place : Worker {
	bool speaks;
	u32 perRow;       // chunks
	u32 first, step;  // of the warp's chunks
	u32 chunks, bytes;
	u32 rounds;  // of each warp, a multiple of Rounds
};

DEVICE Place place(const Norm& call) {
	Place p;
	*(Worker*)&p = worker(call);
	p.speaks = p.warp == p.warps;
	p.perRow = chunks_of((u32)call.bytes);
	p.first = dev::thread() / 32;
	p.step = dev::threads() / 32 - (dev::block() + 1 == dev::blocks());
	p.chunks = p.speaks ? 0 : p.perRow;
	p.bytes = p.speaks || p.flagged ? 0 : (u32)call.bytes;
	p.rounds = (p.perRow + p.step * Rounds - 1) / (p.step * Rounds) * Rounds;
	return p;
}

// chunk_of is the chunk of a round, if the warp moves one in it; word_at is where the thread's word lies
// in the row, if it has one.
DEVICE u32 chunk_of(const Place& p, u32 round) { return p.first + round * p.step; }
DEVICE bool moves(const Place& p, u32 round) { return chunk_of(p, round) < p.chunks; }
DEVICE u32 word_at(const Place& p, u32 round) { return chunk_of(p, round) * ChunkData + p.offset; }
DEVICE bool has(const Place& p, u32 round) { return word_at(p, round) < p.bytes; }

// load_words reads the words of a row that this thread has in Rounds rounds; others are 0, and flags.
DEVICE void load_words(const Place& p, const char* row, u32 round, u64* words) {
#pragma unroll
	for (u32 k = 0; k < Rounds; k++)
		words[k] = has(p, round + k) ? *(const u64*)(row + word_at(p, round + k)) : p.flagged ? p.flag : 0;
}

// send_words gives words of a row to a rank. lines is how far from the first slot the row lies.
DEVICE void send_words(const Norm& call, const Place& p, u32 rank, u32 lines, u32 round, const u64* words) {
	char* to = slot(call, rank, p, lines);
#pragma unroll
	for (u32 k = 0; k < Rounds; k++)
		if (moves(p, round + k)) dev::store_line((u64*)(to + chunk_of(p, round + k) * ChunkBytes), words[k]);
}

// await_words waits for N rounds of a row of each rank of a set. The rows of the ranks lie stride apart.
// It returns false if the wait is to end.
template <int W, int N>
DEVICE bool await_words(const Norm& call, const Place& p, u32 from, const char* lines, u32 stride, u32 round,
	u64 (*got)[W]) {
	Guard guard;
	for (;;) {
		bool ready = true;
#pragma unroll
		for (u32 n = 0; n < N; n++)
#pragma unroll
			for (u32 r = 0; r < W; r++)
				if (moves(p, round + n) && (from >> r & 1))
					got[n][r] = dev::load_line((const u64*)(lines + r * stride + chunk_of(p, round + n) * ChunkBytes));
#pragma unroll
		for (u32 n = 0; n < N; n++)
#pragma unroll
			for (u32 r = 0; r < W; r++)
				if (moves(p, round + n) && (from >> r & 1)) ready = ready && (!p.flagged || got[n][r] == p.flag);
		if (dev::all_warp(ready)) return true;
		if (dev::any_warp(!go_on(guard, call, p.epoch))) return false;
	}
}

// reduce_words turns this rank's words into the sums of all ranks, when they have come.
template <int W>
DEVICE bool reduce_words(const Norm& call, const Place& p, const char* lines, u32 stride, u32 round, u64* words) {
	enum { N = W > 4 ? 1 : Rounds };
	u32 peers = others(call, (1u << call.ranks) - 1);
#pragma unroll
	for (u32 k = 0; k < Rounds; k += N) {
		u64 got[N][W];
		if (!await_words<W, N>(call, p, peers, lines, stride, round + k, got)) return false;
#pragma unroll
		for (u32 n = 0; n < N; n++)
			if (moves(p, round + k + n)) words[k + n] = total<BF16, W>(call, p, words[k + n], got[n]);
	}
	return true;
}

// take_words gets the words of a row that another rank has reduced.
DEVICE bool take_words(const Norm& call, const Place& p, const char* lines, u32 round, u64* words) {
	u64 got[Rounds][1];
	if (!await_words<1, Rounds>(call, p, 1, lines, 0, round, got)) return false;
#pragma unroll
	for (u32 k = 0; k < Rounds; k++) words[k] = got[k][0];
	return true;
}

// add_words adds up two words, and the squares of the result to a sum.
DEVICE u64 add_words(u64 a, u64 b, float& squares) {
	float x[4], y[4];
	BF16::unpack(a, x);
	BF16::unpack(b, y);
	for (int i = 0; i < 4; i++) x[i] += y[i];
	u64 sum = BF16::pack(x);
	BF16::unpack(sum, x);
	for (int i = 0; i < 4; i++) squares += x[i] * x[i];
	return sum;
}

DEVICE u64 scale_word(u64 word, u64 weights, float scale) {
	float x[4], w[4];
	BF16::unpack(word, x);
	BF16::unpack(weights, w);
	for (int i = 0; i < 4; i++) x[i] = x[i] * scale * w[i];
	return BF16::pack(x);
}

// norm_row adds the sums of a row to the residual, and normalizes it. sums gets the words of Rounds rounds,
// or returns false. All threads of a block call it, and get the same answer.
template <class Sums>
DEVICE bool norm_row(const Norm& call, const Place& p, u64 row, Sums sums) {
	u64 words[Rounds], residual[Rounds], weights[Rounds];
	char* kept = call.residual + row * call.bytes;
	float squares = 0;
	u32 round = 0;
	for (;; round += Rounds) {
		load_words(p, kept, round, residual);
		if (!dev::all_block(sums(round, words))) return false;
		load_words(p, call.weight, round, weights);
#pragma unroll
		for (u32 k = 0; k < Rounds; k++) {
			if (!has(p, round + k)) continue;
			residual[k] = add_words(words[k], residual[k], squares);
			*(u64*)(kept + word_at(p, round + k)) = residual[k];
		}
		if (round + Rounds >= p.rounds) break;
	}
	float scale = dev::inverse_root(dev::sum_block(squares) / (float)call.hidden + call.epsilon);
	for (;; round -= Rounds) {
#pragma unroll
		for (u32 k = 0; k < Rounds; k++)
			if (has(p, round + k))
				*(u64*)(call.recv + row * call.bytes + word_at(p, round + k)) = scale_word(residual[k], weights[k], scale);
		if (round == 0) return true;
		load_words(p, kept, round - Rounds, residual);
		load_words(p, call.weight, round - Rounds, weights);
	}
}

// hail is what the last warp of the grid does before it waits with its block. It returns false if there
// is to be no result, to all threads of a warp alike.
DEVICE bool hail(const Norm& call, const Place& p) {
	if (!p.speaks) return true;
	bool met = true;
	if (p.lane < call.ranks && p.lane != call.rank) {
		greet(call, p.lane, p.epoch);
		met = meet<false>(call, p.lane, p.epoch);
	}
	return dev::all_warp(met);
}

// norm_one_shot gives every rank everything. A block has whole rows.
template <int W>
DEVICE void norm_one_shot(const Norm& call) {
	Place p = place(call);
	u32 each = p.perRow * ChunkBytes, stride = call.rows * each;
	for (u32 row = dev::block(); row < call.rows; row += dev::blocks())
		for (u32 round = 0; round < p.rounds; round += Rounds) {
			u64 words[Rounds];
			load_words(p, call.send + row * call.bytes, round, words);
#pragma unroll
			for (u32 k = 1; k < W; k++) {
				u32 r = (call.rank + k) % W;
				if (r < call.ranks) send_words(call, p, r, call.rank * stride + row * each, round, words);
			}
		}
	bool met = hail(call, p), going = true;
	for (u32 row = dev::block(); row < call.rows && going; row += dev::blocks())
		going = norm_row(call, p, row, [&](u32 round, u64* words) {
			load_words(p, call.send + row * call.bytes, round, words);
			return met && reduce_words<W>(call, p, slot(call, call.rank, p, row * each), stride, round, words);
		});
	finish(call, p.epoch);
}

// Sets are as many rows as there are ranks, one of each; those of all ranks lie stride apart.
struct Sets {
	u32 count, each, stride;
};

DEVICE Sets sets_of(const Norm& call, const Place& p) {
	Sets s;
	s.count = (call.rows + call.ranks - 1) / call.ranks;
	s.each = p.perRow * ChunkBytes;
	s.stride = s.count * s.each;
	return s;
}

// scatter_set gives each rank its row of a set.
DEVICE void scatter_set(const Norm& call, const Place& p, const Sets& s, u32 set) {
#pragma unroll 1
	for (u32 k = 1; k < call.ranks; k++) {
		u32 r = (call.rank + k) % call.ranks;
		u64 row = (u64)set * call.ranks + r;
		for (u32 round = 0; round < p.rounds && row < call.rows; round += Rounds) {
			u64 words[Rounds];
			load_words(p, call.send + row * call.bytes, round, words);
			send_words(call, p, r, call.rank * s.stride + set * s.each, round, words);
		}
	}
}

// own_row reduces the row of a set that is this rank's, and shares it.
template <int W>
DEVICE bool own_row(const Norm& call, const Place& p, const Sets& s, u32 set, bool met) {
	u64 row = (u64)set * call.ranks + call.rank;
	if (row >= call.rows) return dev::all_block(met);
	return norm_row(call, p, row, [&](u32 round, u64* words) {
		load_words(p, call.send + row * call.bytes, round, words);
		const char* lines = slot(call, call.rank, p, set * s.each);
		if (!met || !reduce_words<W>(call, p, lines, s.stride, round, words)) return false;
#pragma unroll
		for (u32 k = 1; k < W; k++) {
			u32 r = (call.rank + k) % W;
			if (r < call.ranks)
				send_words(call, p, r, HalfBytes / 2 + call.rank * s.stride + set * s.each, round, words);
		}
		return true;
	});
}

// other_rows takes the rows of a set that are the other ranks'.
DEVICE bool other_rows(const Norm& call, const Place& p, const Sets& s, u32 set) {
#pragma unroll 1
	for (u32 k = 1; k < call.ranks; k++) {
		u32 r = (call.rank + k) % call.ranks;
		u64 row = (u64)set * call.ranks + r;
		const char* lines = slot(call, call.rank, p, HalfBytes / 2 + r * s.stride + set * s.each);
		bool going = row >= call.rows || norm_row(call, p, row, [&](u32 round, u64* words) {
			return take_words(call, p, lines, round, words);
		});
		if (!going) return false;
	}
	return true;
}

// norm_two_shot has each rank reduce the rows that are its own, one of each set, and give them to the
// others. A block has whole sets.
template <int W>
DEVICE void norm_two_shot(const Norm& call) {
	Place p = place(call);
	Sets s = sets_of(call, p);
	for (u32 set = dev::block(); set < s.count; set += dev::blocks()) scatter_set(call, p, s, set);
	bool met = hail(call, p), going = true;
	for (u32 set = dev::block(); set < s.count && going; set += dev::blocks())
		going = own_row<W>(call, p, s, set, met);
	for (u32 set = dev::block(); set < s.count && going; set += dev::blocks())
		going = other_rows(call, p, s, set);
	finish(call, p.epoch);
}
