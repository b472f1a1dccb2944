// Norm kernels implement AllReduceRMSNorm and ReduceScatterRMSNorm in one kernel. A block owns whole rows.
// It exchanges a row with the same block of the other ranks in lines, adds the sum to the residual, and
// keeps the new residual in shared memory. Then it normalizes the row, and quantizes it if the call asks
// for that. Blocks do not wait for other blocks of their grid.
//
// The bits of a row depend only on its elements, not on the kernel or on the number of rows: sums are added
// in the order of ranks, and the squares of a row in an order that depends only on its length. Thread t of
// RowThreads adds the squares of the packs t, t+RowThreads, ... to 0 by fused multiply-add. Then the values
// of lanes at distances 16, 8, 4, 2 and 1 are added, and then the sums of 16 warps, as a tree.
#pragma once
#include <line.h>

// Norm describes a call. send is the input. In a scatter it has rows for each rank. The normalized rows are
// written to recv, unless OnlyQuantized is set. All addresses are multiples of 16.
struct Norm : Call {
	char* residual;  // read and written
	const char* weight;
	char* quantized;
	float* scales;
	u64 scaleRow, scaleGroup;  // distances of scales in elements: between rows, and between groups
	u32 rows, hidden;          // hidden is a multiple of 8
	float epsilon, share;      // share is 1/hidden
	float bias;                // added to each weight
	u32 quant;                 // a Quant, with OnlyQuantized
};

// Quant selects the scales of the quantized output: the given scales[0], or a computed scale for each row
// or for each group of 128 elements.
enum Quant : u32 { NotQuantized, StaticScale, ScalePerRow, ScalePerGroup, OnlyQuantized = 8 };

enum : u32 {
	RowThreads = 512,
	RowBytes = 2 << 14,  // the longest row
};

// QuantMost is the largest value of the 8-bit type. The largest value of a row or group becomes QuantMost,
// or smaller if it is below QuantLeast.
constexpr int QuantMost = 448;
constexpr float QuantLeast = 1e-10f;

enum : u32 { Infinity = 0x7f800000 };

template <class N>
DEVICE void unpack(Pack p, float* v) {
	N::unpack(p.a, v);
	N::unpack(p.b, v + 4);
}

template <class N>
DEVICE Pack plus(Pack a, Pack b) {
	float x[8], y[8];
	unpack<N>(a, x);
	unpack<N>(b, y);
	for (int i = 0; i < 8; i++) x[i] += y[i];
	return {N::pack(x), N::pack(x + 4)};
}

// sum_packs adds up the packs of all ranks and rounds once.
template <class N, int W>
DEVICE Pack sum_packs(const Call& call, Pack mine, const Pack* got) {
	Total<N> a, b;
#pragma unroll
	for (int r = 0; r < W; r++) {
		if (r >= call.ranks) break;
		Pack p = r == call.rank ? mine : got[r];
		if (r == 0) {
			first(a, p.a);
			first(b, p.b);
		} else {
			next(a, Sum, p.a);
			next(b, Sum, p.b);
		}
	}
	return {N::pack(a.v), N::pack(b.v)};
}

// weigh multiplies eight elements by their weights.
template <class N>
DEVICE void weigh(const Norm& call, float* v, Pack weights) {
	float w[8];
	unpack<N>(weights, w);
	for (int i = 0; i < 8; i++) v[i] = dev::multiply(v[i], w[i] + call.bias);
}

DEVICE void largest_of(const float* v, float& largest) {
	for (int i = 0; i < 8; i++) largest = dev::maximum(largest, dev::magnitude(v[i]));
}

// scale_for returns the scale for a largest magnitude.
DEVICE float scale_for(float largest) { return dev::quotient_by<QuantMost>(largest < QuantLeast ? QuantLeast : largest); }

// poison_row poisons the outputs of a row, except for the residual.
NOINLINE void poison_row(const Norm& call, u32 row) {
	u32 packs = call.hidden / 8, quant = call.quant % OnlyQuantized;
#pragma unroll 1
	for (u32 i = dev::thread(); i < packs; i += dev::threads()) {
		u64 at = (u64)row * packs + i;
		if (call.quant < OnlyQuantized) ((Pack*)call.recv)[at] = {Poison, Poison};
		if (quant != NotQuantized) ((u64*)call.quantized)[at] = Poison;
		if (quant == ScalePerGroup ? i % 16 == 0 : quant == ScalePerRow && i == 0)
			call.scales[row * call.scaleRow + i / 16 * call.scaleGroup] = dev::from_bits((u32)Poison);
	}
}

// norm_row writes the outputs of a row of the new residual, which is in shared memory. All threads of the
// block call it. weight holds the weights of the thread's first pack. A thread has one pack, or several of a
// long row. given is the reciprocal of a static scale. The product of the element and its weight is rounded
// before it is scaled. The largest magnitudes are therefore known before the root.
template <class N, bool Quantizes>
DEVICE void norm_row(const Norm& call, u32 row, const Pack* kept, Pack weight, float given, bool ok) {
	u32 packs = call.hidden / 8, me = dev::opaque(dev::thread()), base = dev::local(kept), lane = me % 32, step = dev::threads(), quant = call.quant % OnlyQuantized;
	Pack own = {};
	const Pack* weights = (const Pack*)call.weight;
	if (me < packs) own = dev::load_local(base + me * 16);
	float squares = 0, largest = 0, v[8];
	unpack<N>(own, v);
	for (int k = 0; k < 8; k++) squares = dev::multiply_add(v[k], v[k], squares);
	if (me >= RowThreads) squares = 0;
	else
#pragma unroll 1
		for (u32 i = me + RowThreads; i < packs; i += RowThreads) {
			float u[8];
			unpack<N>(dev::load_local(base + i * 16), u);
			for (int k = 0; k < 8; k++) squares = dev::multiply_add(u[k], u[k], squares);
		}
	weigh<N>(call, v, weight);
	if (Quantizes) {
		largest_of(v, largest);
		if (quant == ScalePerRow)
#pragma unroll 1
			for (u32 i = me + step; i < packs; i += step) {
				float u[8];
				unpack<N>(dev::load_local(base + i * 16), u);
				weigh<N>(call, u, weights[i]);
				largest_of(u, largest);
			}
		dev::sum_row(base + RowBytes, squares, largest, true, quant == ScalePerRow, me);
	} else {
		dev::sum_row(base + RowBytes, squares, largest, false, false, me);
	}
	if (!ok) return poison_row(call, row);
	if (me - lane >= packs) return;
	float root = dev::inverse_of_root(dev::multiply(squares, call.share) + call.epsilon);
	float factor = given;
	if (Quantizes && quant == ScalePerRow) {
		float scale = scale_for(N::rounded(dev::multiply(largest, root)));
		factor = dev::inverse(scale);
		if (me == 0) call.scales[row * call.scaleRow] = scale;
	}
#pragma unroll 1
	for (u32 i = me;;) {
		for (int k = 0; k < 8; k++) v[k] = dev::multiply(v[k], root);
		Pack out = {N::pack(v), N::pack(v + 4)};
		u64 at = (u64)row * packs + i;
		if (i < packs && (!Quantizes || call.quant < OnlyQuantized)) ((Pack*)call.recv)[at] = out;
		if (Quantizes) {
			unpack<N>(out, v);
			if (quant == ScalePerGroup) {
				float most = N::rounded(dev::multiply(largest, root));
				if (dev::to_bits(root) == Infinity) {
					// The products of 0 are NaN.
					most = 0;
					largest_of(v, most);
					most = dev::maximum_of_16(most);
				}
				float scale = scale_for(most);
				factor = dev::inverse(scale);
				if (i % 16 == 0 && i < packs) call.scales[row * call.scaleRow + i / 16 * call.scaleGroup] = scale;
			}
			for (int k = 0; k < 8; k++) v[k] = dev::multiply(v[k], factor);
			if (i < packs) ((u64*)call.quantized)[at] = dev::to_e4m3(v);
		}
		i += step;
		if (i - lane >= packs) break;
		own = {};
		Pack weight = {};
		if (i < packs) {
			own = dev::load_local(base + i * 16);
			weight = weights[i];
		}
		unpack<N>(own, v);
		weigh<N>(call, v, weight);
		if (Quantizes && quant == ScalePerGroup) {
			largest = 0;
			largest_of(v, largest);
			largest = dev::maximum_of_16(largest);
		}
	}
}

// given_factor returns the reciprocal of a static scale.
template <bool Quantizes>
DEVICE float given_factor(const Norm& call) {
	return Quantizes && call.quant % OnlyQuantized == StaticScale ? 1 / call.scales[0] : 0;
}

// poison_sums poisons the new residual of a row.
NOINLINE void poison_sums(const Norm& call, u32 row) {
	u32 packs = call.hidden / 8;
#pragma unroll 1
	for (u32 i = dev::thread(); i < packs; i += dev::threads()) ((Pack*)call.residual)[(u64)row * packs + i] = {Poison, Poison};
}

// first_weights loads the weights of the thread's first pack. Nothing waits for a load that is early enough.
DEVICE Pack first_weights(const Norm& call) {
	return dev::thread() < call.hidden / 8 ? ((const Pack*)call.weight)[dev::thread()] : Pack{};
}

// wait_longer calls keep_waiting after PollsAtOnce polls. It is not inlined, which saves registers.
NOINLINE bool wait_longer(Guard& guard, const Call& call, u64 epoch) {
	guard.polls += dev::PollsAtOnce - 1;
	return keep_waiting(guard, call, epoch);
}

// RowLines moves the rows of a block. Warps of a block share the chunks of a row. The last warp moves no
// data. In the first block it exchanges headers.
template <class N, int W>
struct RowLines {
	typedef Chunk<Pack> C;
	const Norm& call;
	Worker<Pack> w;
	u32 bytes;        // of a row
	u32 part;         // bytes of a row that a rank reduces; all of them in one-shot calls
	u32 chunks;       // of a part
	u32 size;         // bytes of its lines
	u32 lineOffset;   // offset of the thread's line in a chunk of data
	char* kept;       // the row in shared memory

	MEMBER RowLines(const Norm& call, u32 part) : call(call), part(part) {
		w.lane = dev::thread() % 32;
		w.warp = dev::thread() / 32;
		w.warps = dev::threads() / 32 - 1;
		u32 line = w.lane / C::Threads;
		lineOffset = line * (C::Threads - 1) * sizeof(Pack);
		w.flagged = w.lane % C::Threads == C::Threads - 1;
		w.at = w.lane * sizeof(Pack);
		w.offset = w.flagged ? C::Tail + line * C::Rest : (w.lane - line) * sizeof(Pack);
		w.prologue = begin(call);
		bytes = 2 * call.hidden;
		chunks = chunks_of<Pack>(part);
		size = chunks * C::Bytes;
		kept = dev::shared<RowBytes + dev::SumBytes>();
	}

	MEMBER bool moves() const { return w.warp < w.warps; }

	// part_of returns the size of a rank's part. The last parts may be short or empty.
	MEMBER u32 part_of(u32 r) const {
		u32 begin = r * part;
		return begin >= bytes ? 0 : bytes - begin < part ? bytes - begin : part;
	}

	// lines returns the offset in exchange memory of the part of a row from a rank.
	MEMBER u32 lines(u32 row, u32 rank) const { return (rank * call.rows + row) * size; }

	MEMBER Pack read(const char* at, u32 most, u32 chunk) const {
		u32 offset = chunk * C::Data + w.offset;
		Pack p = {};
		if (offset < most) take(p, at + offset, w.flagged);
		return p;
	}
	MEMBER void write(char* at, u32 most, u32 chunk, Pack p) const {
		u32 offset = chunk * C::Data + w.offset;
		if (offset < most) put(p, at + offset, w.flagged);
	}

	// needs reports whether the thread's line of a chunk has data.
	MEMBER bool needs(u32 most, u32 chunk) const { return chunk * C::Data + lineOffset < most; }

	MEMBER void send(u32 rank, u32 offset, u32 most, u32 chunk, Pack p) const {
		if (w.flagged) p.b = flag_of(w.epoch(), call.digest);
		dev::sync_warp();
		if (needs(most, chunk)) dev::store_line((Pack*)(slot(call, rank, w, offset) + chunk * C::Bytes), p);
	}

	// receive waits for the chunks of a set of ranks, with lines at a distance of stride. It returns false
	// if the wait must end.
	template <int M>
	MEMBER bool receive(u32 from, u32 offset, u32 stride, u32 most, u32 chunk, Pack* got) const {
		const char* at = slot(call, call.rank, w, offset) + chunk * C::Bytes;
		u64 flag = flag_of(w.epoch(), call.digest);
		bool checks = w.flagged && needs(most, chunk);
		dev::sync_warp();
		Guard guard;
		for (u32 polls = 1;; polls++) {
#pragma unroll
			for (int r = 0; r < M; r++)
				if (from >> r & 1) got[r] = dev::load_line((const Pack*)(at + r * stride));
			bool ready = true;
#pragma unroll
			for (int r = 0; r < M; r++)
				if (from >> r & 1) ready = ready && (!checks || got[r].b == flag);
			if (dev::all_warp(ready)) return true;
			dev::pause();
			if (polls % dev::PollsAtOnce == 0 && dev::any_warp(!wait_longer(guard, call, w.epoch()))) return false;
		}
	}

	// keep adds sums to the residual and stores the result in the residual and in shared memory.
	MEMBER void keep(u32 row, u32 offset, u32 most, u32 chunk, Pack sums, Pack old) const {
		sums = plus<N>(sums, old);
		write(call.residual + (u64)row * bytes + offset, most, chunk, sums);
		write(kept + offset, most, chunk, sums);
	}
	MEMBER Pack old(u32 row, u32 offset, u32 most, u32 chunk) const {
		return read(call.residual + (u64)row * bytes + offset, most, chunk);
	}

	// send_parts sends a part of every row of the block to each other rank: a range of the row or, with
	// Scatters, the same row of the rank's rows.
	template <bool Scatters>
	MEMBER void send_parts() const {
#pragma unroll 1
		for (u32 row = dev::block(); row < call.rows && moves(); row += dev::blocks())
#pragma unroll 1
			for (u32 pair = w.warp; pair < chunks * (call.ranks - 1); pair += w.warps) {
				u32 chunk = pair % chunks, r = call.rank + 1 + pair / chunks;
				if (r >= call.ranks) r -= call.ranks;
				u32 most = Scatters ? bytes : part_of(r);
				u64 offset = Scatters ? r * call.sendStride : r * part;
				Pack mine = read(call.send + (u64)row * bytes + offset, most, chunk);
				if (!ok(w)) break;
				send(r, lines(row, call.rank), most, chunk, mine);
			}
	}

	// start exchanges headers on the header warp. It reports whether the warp may receive data.
	MEMBER bool start() const {
		if (dev::block() == 0 && !moves()) return exchange_headers(call, w);
		return ok(w);
	}
};

// norm_one_shot sends every row of the block to all ranks or, with Scatters, to the rank that the row belongs
// to. Then it receives the rows of its peers.
template <class N, int W, bool Quantizes, bool Scatters>
DEVICE void norm_one_shot(const Norm& call) {
	RowLines<N, W> l(call, 2 * call.hidden);
	u32 step = dev::blocks();
	if constexpr (Scatters) {
		l.template send_parts<true>();
	} else {
#pragma unroll 1
		for (u32 row = dev::block(); row < call.rows && l.moves(); row += step)
#pragma unroll 1
			for (u32 chunk = l.w.warp; chunk < l.chunks; chunk += l.w.warps) {
				Pack mine = l.read(call.send + (u64)row * l.bytes, l.bytes, chunk);
				if (!ok(l.w)) break;
#pragma unroll
				for (int k = 1; k < W; k++) {
					u32 r = (call.rank + k) % W;
					if (r < call.ranks) l.send(r, l.lines(row, call.rank), l.bytes, chunk, mine);
				}
			}
	}
	Pack weight = first_weights(call);
	float factor = given_factor<Quantizes>(call);
	bool done = l.start();
	u64 own = Scatters ? call.rank * call.sendStride : 0;
#pragma unroll 1
	for (u32 row = dev::block(); row < call.rows; row += step) {
#pragma unroll 1
		for (u32 chunk = l.w.warp; chunk < l.chunks && l.moves() && done; chunk += l.w.warps) {
			Pack got[W], mine = l.read(call.send + own + (u64)row * l.bytes, l.bytes, chunk);
			Pack old = l.old(row, 0, l.bytes, chunk);
			done = l.template receive<W>(peers(call, call.recvFrom), l.lines(row, 0), call.rows * l.size, l.bytes, chunk, got);
			if (done) l.keep(row, 0, l.bytes, chunk, sum_packs<N, W>(call, mine, got), old);
		}
		bool good = dev::all_block(done);
		norm_row<N, Quantizes>(call, row, (const Pack*)l.kept, weight, factor, good);
		if (!good) poison_sums(call, row);
		if (row + step < call.rows) dev::sync_block();
	}
	finish(call, l.w.epoch());
}

// norm_two_shot divides each row into a part for each rank. Each rank adds up its part of every row, and
// sends the sums to all ranks, itself included. The parts are multiples of 16 bytes.
template <class N, int W, bool Quantizes>
DEVICE void norm_two_shot(const Norm& call) {
	RowLines<N, W> l(call, (call.hidden / 8 + call.ranks - 1) / call.ranks * sizeof(Pack));
	u32 step = dev::blocks(), second = HalfBytes / 2, begin = call.rank * l.part, own = l.part_of(call.rank);
	l.template send_parts<false>();
	Pack weight = first_weights(call);
	float factor = given_factor<Quantizes>(call);
	bool done = l.start();
#pragma unroll 1
	for (u32 row = dev::block(); row < call.rows && l.moves(); row += step)
#pragma unroll 1
		for (u32 chunk = l.w.warp; chunk * Chunk<Pack>::Data < own && done; chunk += l.w.warps) {
			Pack got[W], mine = l.read(call.send + (u64)row * l.bytes + begin, own, chunk);
			done = l.template receive<W>(peers(call, call.recvFrom), l.lines(row, 0), call.rows * l.size, own, chunk, got);
			if (!done) break;
			mine = sum_packs<N, W>(call, mine, got);
#pragma unroll
			for (int k = 1; k <= W; k++) {
				u32 r = (call.rank + k) % W;
				if (r < call.ranks) l.send(r, second + l.lines(row, call.rank), own, chunk, mine);
			}
		}
#pragma unroll 1
	for (u32 row = dev::block(); row < call.rows; row += step) {
#pragma unroll 1
		for (u32 pair = l.w.warp; pair < l.chunks * call.ranks && l.moves() && done; pair += l.w.warps) {
			u32 chunk = pair % l.chunks, r = pair / l.chunks, at = r * l.part, most = l.part_of(r);
			if (chunk * Chunk<Pack>::Data >= most) continue;
			Pack sums, old = l.old(row, at, most, chunk);
			done = l.template receive<1>(1, second + l.lines(row, r), 0, most, chunk, &sums);
			if (done) l.keep(row, at, most, chunk, sums, old);
		}
		bool good = dev::all_block(done);
		norm_row<N, Quantizes>(call, row, (const Pack*)l.kept, weight, factor, good);
		if (!good) poison_sums(call, row);
		if (row + step < call.rows) dev::sync_block();
	}
	finish(call, l.w.epoch());
}

// norm_local runs after an all-reduce that has written the sums to recv. If the all-reduce has failed,
// norm_local poisons all outputs.
template <class N, bool Quantizes>
DEVICE void norm_local(const Norm& call) {
	dev::next_may_launch();
	dev::await_previous();
	bool good = dev::load_relaxed(&state(call, 0)->fault) == None;
	Pack* kept = (Pack*)dev::shared<RowBytes + dev::SumBytes>();
	Pack weight = first_weights(call);
	float factor = given_factor<Quantizes>(call);
	u32 packs = call.hidden / 8;
#pragma unroll 1
	for (u32 row = dev::block(); row < call.rows; row += dev::blocks()) {
		u64 at = (u64)row * packs;
		for (u32 i = dev::thread(); i < packs; i += dev::threads()) {
			Pack* old = (Pack*)call.residual + at + i;
			Pack sums = plus<N>(((const Pack*)call.recv)[at + i], *old);
			*old = good ? sums : Pack{Poison, Poison};
			kept[i] = sums;
		}
		bool all = dev::all_block(good);
		norm_row<N, Quantizes>(call, row, kept, weight, factor, all);
		dev::sync_block();
	}
}
