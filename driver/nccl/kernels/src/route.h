// Route kernels exchange the rows of a mixture of experts. Dispatch copies the row of a token once to every
// rank that owns one of its experts. Combine adds up the rows that these ranks computed. In the kernels of
// this file, ranks access each other's buffers between two barriers, as in bulk kernels.
//
// From all ids, every block computes how many tokens that precede its own tokens go to each rank. This gives
// the places of its rows, without communication and always in the same order.
#pragma once
#include <barrier.h>
#include <number.h>

// Route describes a call. Addresses of rows and their sizes are multiples of 16.
struct Route {
	u32 rank, ranks, tokens, topK;
	u64 digest, timeout;
	struct Report* report;
	char* exchange[MaxRanks];
	u32 experts, maxTokens, rowBytes, scales;
	// If the experts do not divide evenly, each of the first `more` ranks owns one expert more than the others,
	// whose experts begin at split. high and low are 2^20 divided by the numbers of experts of both, rounded
	// up. A product with them replaces a division, exactly for up to MaxExperts experts.
	u32 split, more, high, low;
	// The experts of this rank.
	u32 firstExpert, ownExperts;
	// In line kernels: the chunks of a place, and 2^31 divided by them, rounded up.
	u32 chunks, inverse;
	// Of each token: the ids of its experts, their weights, and the scales of its row.
	const u32* ids;
	const u32* weights;
	const u32* rowScales;
	// The rows of this rank's tokens: the input of a dispatch, or the output of a combine.
	char* own;
	// The offsets of other tensors than the rows in the output of a dispatch.
	u64 scalesAt, weightsAt, idsAt, countsAt;
	// The output of a dispatch, or the input of a combine, of each rank, at its address in this process.
	char* all[MaxRanks];
};

enum : u32 { RouteThreads = 512, MaxExperts = 512, MaxTopK = 16, NoExpert = ~0u, NoRank = 31 };

// Counters counts tokens for each rank, in 16 bits each.
typedef Pack Counters;

DEVICE u64 counters_of(u32 four) {
	return (four & 1) | (u64)(four & 2) << 15 | (u64)(four & 4) << 30 | (u64)(four & 8) << 45;
}
DEVICE void add_ranks(Counters& c, u32 ranks) {
	c.a += counters_of(ranks & 15);
	c.b += counters_of(ranks >> 4);
}
DEVICE u32 counter(const Counters& c, u32 rank) {
	return (u32)((rank < 4 ? c.a : c.b) >> 16 * (rank % 4)) & 0xffff;
}

// Routes is the shared memory of a block. Index 0 of before, all and unknown has the results of
// count_tokens.
struct Routes {
	Counters before[RouteThreads], all[RouteThreads];
	u32 unknown[RouteThreads];
	Counters next;  // places of the tokens after the current round
	u32 places[RouteThreads][MaxRanks];
	u8 ranks[RouteThreads];  // set of ranks of each token of the current round
};

// owner returns the rank that owns an expert, or NoRank.
DEVICE u32 owner(const Route& call, u32 id) {
	if (id >= call.experts) return NoRank;
	return id < call.split ? id * call.high >> 20 : call.more + ((id - call.split) * call.low >> 20);
}

// Ids holds the ids of a token. Those beyond topK are NoExpert.
struct Ids {
	u32 of[MaxTopK];
};

// load_ids issues all loads at once.
DEVICE Ids load_ids(const Route& call, u32 token) {
	const u32* from = call.ids + (u64)token * call.topK;
	Ids ids;
	if (call.topK % 4 == 0 && (u64)call.ids % sizeof(Pack) == 0) {
#pragma unroll
		for (u32 i = 0; i < MaxTopK; i += 4) {
			Pack four = {~0ull, ~0ull};
			if (i < call.topK) four = *(const Pack*)(from + i);
			ids.of[i] = (u32)four.a, ids.of[i + 1] = (u32)(four.a >> 32);
			ids.of[i + 2] = (u32)four.b, ids.of[i + 3] = (u32)(four.b >> 32);
		}
		return ids;
	}
#pragma unroll
	for (u32 i = 0; i < MaxTopK; i++) ids.of[i] = i < call.topK ? from[i] : (u32)NoExpert;
	return ids;
}

// ranks_of returns the set of ranks that own experts of a token. It adds the number of the token's unknown
// experts to unknown.
DEVICE u32 ranks_of(const Route& call, const Ids& ids, u32& unknown) {
	u32 ranks = 0;
#pragma unroll
	for (u32 i = 0; i < MaxTopK; i++) {
		if (i % 4 == 0 && i >= call.topK) break;
		u32 id = ids.of[i], rank = owner(call, id);
		if (rank != NoRank) ranks |= 1u << rank;
		else if (id != NoExpert) unknown++;
	}
	return ranks;
}

// first_token returns the first token of a block. The block has the tokens up to the first one of the next
// block.
DEVICE u32 first_token(const Route& call, u32 block) { return (u32)((u64)call.tokens * block / dev::blocks()); }

// count_tokens counts, for each rank, the tokens before those of this block. With All it also counts all
// tokens, and all ids of unknown experts.
template <bool All>
DEVICE void count_tokens(const Route& call, Routes& s) {
	u32 me = dev::thread(), first = first_token(call, dev::block()), end = All ? call.tokens : first;
	Counters before = {}, all = {};
	u32 unknown = 0;
	Ids next;
	if (me < end) next = load_ids(call, me);
#pragma unroll 1
	for (u32 t = me; t < end; t += dev::threads()) {
		Ids ids = next;
		if (t + dev::threads() < end) next = load_ids(call, t + dev::threads());
		u32 ranks = ranks_of(call, ids, unknown);
		if (All) add_ranks(all, ranks);
		if (t < first) add_ranks(before, ranks);
	}
	s.before[me] = before;
	if (All) {
		s.all[me] = all;
		s.unknown[me] = unknown;
	}
	u32 step = dev::threads();
	while (step / 2 >= end && step > 1) step /= 2;
	dev::sync_block();
#pragma unroll 1
	while ((step /= 2) > 0) {
		if (me < step) {
			s.before[me].a += s.before[me + step].a;
			s.before[me].b += s.before[me + step].b;
			if (All) {
				s.all[me].a += s.all[me + step].a;
				s.all[me].b += s.all[me + step].b;
				s.unknown[me] += s.unknown[me + step];
			}
		}
		dev::sync_block();
	}
	if (me == 0) s.next = s.before[0];
}

// place_tokens computes the sets of ranks and the places of tokens, one for each thread.
DEVICE void place_tokens(const Route& call, Routes& s, u32 first, u32 count) {
	u32 me = dev::thread(), unknown = 0, ranks = 0;
	if (me < count) s.ranks[me] = (u8)(ranks = ranks_of(call, load_ids(call, first + me), unknown));
	dev::sync_block();
	Counters places = s.next;
	for (u32 i = 0; i < me && i < count; i++) add_ranks(places, s.ranks[i]);
	dev::sync_block();
	if (me < count)
		for (u32 r = 0; r < call.ranks; r++) s.places[me][r] = counter(places, r);
	if (me + 1 == count) {
		add_ranks(places, ranks);
		s.next = places;
	}
	dev::sync_block();
}

// Item is a part of a token's data that a warp moves at once.
struct Item {
	u32 token, part;
};
DEVICE Item item_of(u32 i, u32 parts) { return {i / parts, i % parts}; }

DEVICE u32 parts_of(const Route& call, u32 packs) {
	return (call.rowBytes + 32 * packs * (u32)sizeof(Pack) - 1) / (32 * packs * (u32)sizeof(Pack));
}

// place returns the offset in rows of a place for a rank's token.
DEVICE u64 place(const Route& call, u32 rank, u32 place) { return (u64)rank * call.maxTokens + place; }

// push_row copies a part of a row to the ranks in a set.
template <int W, int U>
DEVICE void push_row(const Route& call, const Routes& s, u32 token, Item item) {
	const Pack* from = (const Pack*)(call.own + (u64)token * call.rowBytes);
	u32 packs = call.rowBytes / sizeof(Pack), first = item.part * 32 * U + dev::thread() % 32, ranks = s.ranks[item.token];
	if (ranks == 0) return;
	Pack got[U];
#pragma unroll
	for (int u = 0; u < U; u++)
		if (first + 32 * u < packs) got[u] = dev::load_once(from + first + 32 * u);
#pragma unroll
	for (int k = 0; k < W; k++) {
		u32 r = (call.rank + k) % W;
		if (!(ranks >> r & 1)) continue;
		Pack* to = (Pack*)(call.all[r] + place(call, call.rank, s.places[item.token][r]) * call.rowBytes);
#pragma unroll
		for (int u = 0; u < U; u++)
			if (first + 32 * u < packs) dev::store_once(to + first + 32 * u, got[u]);
	}
}

// push_words copies a token's scales, weights and ids. Ids of experts on other ranks become NoExpert.
DEVICE void push_words(const Route& call, const Routes& s, u32 token, u32 i) {
	u32 lane = dev::thread() % 32, ranks = s.ranks[i];
#pragma unroll 1
	for (u32 r = 0; r < call.ranks; r++) {
		if (!(ranks >> r & 1)) continue;
		u64 at = place(call, call.rank, s.places[i][r]);
		u32* scales = (u32*)(call.all[r] + call.scalesAt) + at * call.scales;
		for (u32 k = lane; k < call.scales; k += 32) scales[k] = call.rowScales[(u64)token * call.scales + k];
		if (lane >= call.topK) continue;
		u32 id = call.ids[(u64)token * call.topK + lane];
		((u32*)(call.all[r] + call.weightsAt))[at * call.topK + lane] = call.weights[(u64)token * call.topK + lane];
		((u32*)(call.all[r] + call.idsAt))[at * call.topK + lane] = owner(call, id) == r ? id : (u32)NoExpert;
	}
}

// push_counts writes the numbers of rows, and NoExpert to the ids of all unused places.
DEVICE void push_counts(const Route& call, const Routes& s) {
	u32 me = dev::thread(), index = dev::block() * dev::threads() + me, stride = dev::blocks() * dev::threads();
	if (dev::block() == 0 && me < call.ranks)
		((u32*)(call.all[me] + call.countsAt))[call.rank] = counter(s.all[0], me);
	if (dev::block() == 0 && me == call.ranks)
		((u32*)(call.all[call.rank] + call.countsAt))[call.ranks] = s.unknown[0];
#pragma unroll 1
	for (u32 r = 0; r < call.ranks; r++) {
		u32* ids = (u32*)(call.all[r] + call.idsAt) + place(call, call.rank, 0) * call.topK;
		for (u32 i = counter(s.all[0], r) * call.topK + index; i < call.maxTokens * call.topK; i += stride)
			ids[i] = NoExpert;
	}
}

// poison_range poisons a range whose size is a multiple of 16, on the threads of a block.
DEVICE void poison_range(char* at, u64 bytes) {
#pragma unroll 1
	for (u64 i = dev::thread(); i < bytes / sizeof(Pack); i += dev::threads()) dev::store_once((Pack*)at + i, Pack{Poison, Poison});
}

// poison_dispatch poisons the whole output. The ids become NoExpert, and the counts 0. Each block that fails
// does that, because only the sender knows the places of the rows of the same block.
NOINLINE void poison_dispatch(const Route& call) {
	char* at = call.all[call.rank];
	poison_range(at, call.countsAt);
	for (u32 r = dev::thread(); r <= call.ranks; r += dev::threads()) ((u32*)(at + call.countsAt))[r] = 0;
}

template <int W>
DEVICE void dispatch(const Route& call) {
	Prologue prologue = begin(call);
	Routes& s = *(Routes*)dev::shared<sizeof(Routes)>();
	count_tokens<true>(call, s);
	bool ok = await_peers(call, prologue);
	if (ok) {
		push_counts(call, s);
		const int packs = 4;
		u32 warp = dev::thread() / 32, warps = dev::threads() / 32, parts = parts_of(call, packs) + 1;
		u32 end = first_token(call, dev::block() + 1);
#pragma unroll 1
		for (u32 first = first_token(call, dev::block()); first < end; first += dev::threads()) {
			u32 count = end - first < dev::threads() ? end - first : dev::threads();
			place_tokens(call, s, first, count);
#pragma unroll 1
			for (u32 i = warp; i < count * parts; i += warps) {
				Item item = item_of(i, parts);
				if (item.part + 1 == parts) push_words(call, s, first + item.token, item.token);
				else push_row<W, packs>(call, s, first + item.token, item);
			}
			if (first + dev::threads() < end) dev::sync_block();
		}
		ok = await_done(call, prologue.epoch());
	}
	if (!ok) {
		retract_header(call, prologue);
		poison_dispatch(call);
	}
	count(call, prologue.epoch());
}

// add_row adds a pack of bfloat16 values to sums. If any is false, it copies the values instead.
DEVICE void add_row(float* sums, bool& any, Pack pack) {
	float row[8];
	BF16::unpack(pack.a, row);
	BF16::unpack(pack.b, row + 4);
	for (int i = 0; i < 8; i++) sums[i] = any ? sums[i] + row[i] : row[i];
	any = true;
}
DEVICE Pack sum_of(const float* sums) { return {BF16::pack(sums), BF16::pack(sums + 4)}; }

// sum_row adds up a part of the rows from the ranks in a set, in the order of ranks.
template <int W, int U>
DEVICE void sum_row(const Route& call, const Routes& s, u32 token, Item item) {
	u32 packs = call.rowBytes / sizeof(Pack), first = item.part * 32 * U + dev::thread() % 32, ranks = s.ranks[item.token];
	Pack got[W][U];
#pragma unroll
	for (int r = 0; r < W; r++) {
		if (!(ranks >> r & 1)) continue;
		const Pack* from = (const Pack*)(call.all[r] + place(call, call.rank, s.places[item.token][r]) * call.rowBytes);
#pragma unroll
		for (int u = 0; u < U; u++)
			if (first + 32 * u < packs) got[r][u] = dev::load_once(from + first + 32 * u);
	}
	Pack* to = (Pack*)(call.own + (u64)token * call.rowBytes);
#pragma unroll
	for (int u = 0; u < U; u++) {
		float sums[8] = {};
		bool any = false;
#pragma unroll
		for (int r = 0; r < W; r++)
			if (ranks >> r & 1) add_row(sums, any, got[r][u]);
		if (first + 32 * u < packs) dev::store_once(to + first + 32 * u, sum_of(sums));
	}
}

template <int W>
DEVICE void combine(const Route& call) {
	Prologue prologue = begin(call);
	Routes& s = *(Routes*)dev::shared<sizeof(Routes)>();
	count_tokens<false>(call, s);
	u32 begin = first_token(call, dev::block()), end = first_token(call, dev::block() + 1);
	bool ok = await_peers(call, prologue);
	if (ok) {
		const int packs = W > 4 ? 1 : 2;
		u32 warp = dev::thread() / 32, warps = dev::threads() / 32, parts = parts_of(call, packs);
#pragma unroll 1
		for (u32 first = begin; first < end; first += dev::threads()) {
			u32 count = end - first < dev::threads() ? end - first : dev::threads();
			place_tokens(call, s, first, count);
#pragma unroll 1
			for (u32 i = warp; i < count * parts; i += warps) {
				Item item = item_of(i, parts);
				sum_row<W, packs>(call, s, first + item.token, item);
			}
			if (first + dev::threads() < end) dev::sync_block();
		}
		ok = await_done(call, prologue.epoch());
	}
	if (!ok) {
		retract_header(call, prologue);
		poison_range(call.own + (u64)begin * call.rowBytes, (u64)(end - begin) * call.rowBytes);
	}
	count(call, prologue.epoch());
}
