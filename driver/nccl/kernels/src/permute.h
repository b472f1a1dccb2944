// Permute kernels convert between the layout of Dispatch, with rows grouped by rank, and one with rows grouped
// by expert, as grouped matrix products need them. They use only the memory of this rank.
//
// A pair is a row of a dispatch and one of its ids that is an expert of this rank. The pairs of an expert are in
// the order of the ids in memory: by rank, place and index. From all ids, every block computes the first row of
// each expert and how many pairs precede its own rows, so blocks need not communicate.
#pragma once
#include <number.h>
#include <route.h>

// Permute describes a permutation. Addresses of rows and their sizes are multiples of 16.
struct Permute {
	u32 ranks, maxTokens, topK, rowBytes, scales, align;
	// The size of a row that experts have computed.
	u32 computedBytes;
	// The experts of this rank, the largest number of experts of any rank, and the rows for all pairs.
	u32 firstExpert, ownExperts, experts, capacity;
	// The output of a dispatch and of permute, the rows that experts have computed, and the input of a combine.
	const char* dispatched;
	char* permuted;
	const char* computed;
	char* returned;
	// The offsets of other tensors than the rows in the outputs of a dispatch and of permute.
	u64 scalesAt, weightsAt, idsAt, countsAt;
	u64 toScales, toWeights, toExperts, toPlaces, toFirsts, toCounts, toReceived;
};

enum : u32 { PermuteThreads = 512, PermuteWarps = PermuteThreads / 32, NoRow = ~0u };

// Used describes which places have rows: the first ones of each rank.
struct Used {
	u32 ends[MaxRanks];  // the number of rows of a rank and of all ranks before it
};

DEVICE u32 all_used(const Permute& call, const Used& s) { return s.ends[call.ranks - 1]; }
DEVICE u32 rows_of(const Used& s, u32 rank) { return s.ends[rank] - (rank > 0 ? s.ends[rank - 1] : 0); }

// read_counts reads the number of rows from each rank.
DEVICE void read_counts(const Permute& call, const u32* counts, Used& s) {
	u32 me = dev::thread(), rows = 0;
	if (me < call.ranks) {
		for (u32 r = 0; r <= me; r++) rows += counts[r] < call.maxTokens ? counts[r] : call.maxTokens;
		s.ends[me] = rows;
	}
	dev::sync_block();
}

// used_place returns the place of the row with the given number among all rows.
DEVICE u32 used_place(const Permute& call, const Used& s, u32 row) {
	u32 rank = 0, first = 0;
#pragma unroll
	for (u32 r = 0; r + 1 < MaxRanks; r++)
		if (r + 1 < call.ranks && row >= s.ends[r]) rank = r + 1, first = s.ends[r];
	return rank * call.maxTokens + row - first;
}

// Pairs is the shared memory of a block. The arrays are indexed by the number of an expert on this rank.
struct Pairs {
	Used used;
	u32 packEnds[MaxRanks];      // like Used.ends, for packs of ids
	u32 counts[2][MaxExperts];   // pairs before those of this block, and others
	u32 next[MaxExperts];        // the row of the next pair
	u16 inWarp[PermuteWarps][MaxExperts];  // pairs of each warp in the current round
	u32 sums[PermuteWarps];
	u32 rows[PermuteThreads];    // the row of each id of the current round, or NoRow
};

DEVICE const u32* ids_of(const Permute& call) { return (const u32*)(call.dispatched + call.idsAt); }

// IdPack is a pack of ids. Those from word first up to end belong to rows.
struct IdPack {
	u32 pack, first, end;
};

DEVICE IdPack id_pack(const Permute& call, const Pairs& s, u32 i) {
	u32 rank = 0, before = 0;
#pragma unroll
	for (u32 r = 0; r + 1 < MaxRanks; r++)
		if (r + 1 < call.ranks && i >= s.packEnds[r]) rank = r + 1, before = s.packEnds[r];
	u32 first = rank * call.maxTokens * call.topK;
	return {first / 4 + i - before, first, first + rows_of(s.used, rank) * call.topK};
}

// count_pairs counts the pairs of each expert: those before the id firstWord, and the others.
DEVICE void count_pairs(const Permute& call, Pairs& s, u32 firstWord) {
	u32 me = dev::thread();
#pragma unroll 1
	for (u32 i = me; i < 2 * MaxExperts; i += dev::threads()) s.counts[0][i] = 0;
	if (me < call.ranks) {
		u32 packs = 0;
#pragma unroll 1
		for (u32 r = 0; r <= me; r++) {
			u32 first = r * call.maxTokens * call.topK, words = rows_of(s.used, r) * call.topK;
			if (words > 0) packs += (first + words + 3) / 4 - first / 4;
		}
		s.packEnds[me] = packs;
	}
	u32 counts = dev::local(&s.counts);
	dev::sync_block();
	const Pack* ids = (const Pack*)ids_of(call);
	const int unrolled = 4;
	u32 packs = s.packEnds[call.ranks - 1];
#pragma unroll 1
	for (u32 i = me; i < packs; i += unrolled * dev::threads()) {
		Pack got[unrolled];
		IdPack at[unrolled];
#pragma unroll
		for (int u = 0; u < unrolled; u++) {
			u32 next = i + u * dev::threads();
			at[u] = {};
			if (next < packs) at[u] = id_pack(call, s, next), got[u] = ids[at[u].pack];
		}
#pragma unroll
		for (int u = 0; u < unrolled; u++)
#pragma unroll
			for (u32 k = 0; k < 4; k++) {
				u32 word = 4 * at[u].pack + k;
				if (word < at[u].first || word >= at[u].end) continue;
				u32 expert = (u32)((k < 2 ? got[u].a : got[u].b) >> 32 * (k % 2)) - call.firstExpert;
				if (expert < call.ownExperts) dev::count_at(counts + 4 * ((word < firstWord ? 0 : MaxExperts) + expert));
			}
	}
	dev::sync_block();
}

// place_experts computes the first row of each expert. The first block, which has the fewest rows, writes
// the results. All blocks together write NoExpert as the expert of rows without a pair.
DEVICE void place_experts(const Permute& call, Pairs& s) {
	u32 me = dev::thread(), lane = me % 32, before = 0, pairs = 0;
	if (me < call.ownExperts) before = s.counts[0][me], pairs = before + s.counts[1][me];
	u32 rows = (pairs + call.align - 1) / call.align * call.align, end = rows, all = 0;
	for (u32 step = 1; step < 32; step *= 2) {
		u32 other = dev::shuffle(end, (lane - step) % 32);
		if (lane >= step) end += other;
	}
	if (lane == 31) s.sums[me / 32] = end;
	dev::sync_block();
#pragma unroll 4
	for (u32 w = 0; w < PermuteWarps; w++) {
		if (w < me / 32) end += s.sums[w];
		all += s.sums[w];
	}
	u32 first = end - rows;
	s.next[me] = first + before;
	u32* experts = (u32*)(call.permuted + call.toExperts);
#pragma unroll 1
	for (u32 i = all + dev::block() * dev::threads() + me; i < call.capacity; i += dev::blocks() * dev::threads())
		experts[i] = NoExpert;
	if (me < call.ownExperts && me % dev::blocks() == dev::block())
#pragma unroll 1
		for (u32 i = first + pairs; i < end; i++) experts[i] = NoExpert;
	if (dev::block() > 0) return;
	u32* firsts = (u32*)(call.permuted + call.toFirsts);
	if (me < call.experts) {
		firsts[me] = first;
		((u32*)(call.permuted + call.toCounts))[me] = pairs;
	}
	if (me == 0) firsts[call.experts] = all;
	if (me < call.ranks) ((u32*)(call.permuted + call.toReceived))[me] = rows_of(s.used, me);
}

// clear_places writes NoRow for each id of a place without a row.
DEVICE void clear_places(const Permute& call, const Pairs& s) {
	u32* places = (u32*)(call.permuted + call.toPlaces);
#pragma unroll 1
	for (u32 r = 0; r < call.ranks; r++) {
		u32 first = r * call.maxTokens * call.topK, end = first + call.maxTokens * call.topK;
		first += rows_of(s.used, r) * call.topK + dev::block() * dev::threads() + dev::thread();
#pragma unroll 1
		for (u32 i = first; i < end; i += dev::blocks() * dev::threads()) places[i] = NoRow;
	}
}

// place_pairs computes the row of one id for each thread: of `words` ids from the first id of a place on.
DEVICE void place_pairs(const Permute& call, Pairs& s, u32 firstUsed, u32 words) {
	u32 me = dev::thread(), lane = me % 32, warp = me / 32, word = 0, expert = NoExpert, row = NoRow, weight = 0;
#pragma unroll 1
	for (u32 i = lane; i < (call.ownExperts + 1) / 2; i += 32) ((u32*)s.inWarp[warp])[i] = 0;
	dev::sync_warp();
	if (me < words) {
		word = used_place(call, s.used, firstUsed + me / call.topK) * call.topK + me % call.topK;
		expert = ids_of(call)[word] - call.firstExpert;
		weight = ((const u32*)(call.dispatched + call.weightsAt))[word];
	}
	bool isPair = expert < call.ownExperts;
	// The lanes with the same expert. A word of MaxExperts has nine bits.
	u32 same = dev::vote(isPair);
	for (u32 bit = 0; bit < 9; bit++) {
		bool mine = expert >> bit & 1;
		u32 set = dev::vote(mine);
		same &= mine ? set : ~set;
	}
	u32 earlier = dev::count_bits(same & ((1u << lane) - 1));
	if (isPair && earlier == 0) s.inWarp[warp][expert] = (u16)dev::count_bits(same);
	dev::sync_block();
	if (isPair) {
		row = s.next[expert] + earlier;
#pragma unroll 4
		for (u32 w = 0; w < warp; w++) row += s.inWarp[w][expert];
		((u32*)(call.permuted + call.toExperts))[row] = expert;
		((u32*)(call.permuted + call.toWeights))[row] = weight;
	}
	if (me < words) ((u32*)(call.permuted + call.toPlaces))[word] = row;
	s.rows[me] = row;
	dev::sync_block();
	if (me < call.ownExperts)
#pragma unroll 4
		for (u32 w = 0; w < PermuteWarps; w++) s.next[me] += s.inWarp[w][me];
}

// lowest returns the number of the lowest bit in a set that is not empty.
DEVICE u32 lowest(u32 set) { return dev::count_bits((set & -set) - 1); }

// copy_part copies a part of the row at a place to all its rows. row is that of the lane's id, or NoRow.
template <int U>
DEVICE void copy_part(const Permute& call, u32 place, u32 part, u32 row) {
	u32 packs = call.rowBytes / sizeof(Pack), first = part * 32 * U + dev::thread() % 32;
	const Pack* from = (const Pack*)(call.dispatched + (u64)place * call.rowBytes);
	Pack got[U];
#pragma unroll
	for (int u = 0; u < U; u++)
		if (first + 32 * u < packs) got[u] = dev::load_once(from + first + 32 * u);
#pragma unroll 1
	for (u32 to = dev::vote(row != NoRow); to != 0; to &= to - 1) {
		Pack* at = (Pack*)(call.permuted + (u64)dev::shuffle(row, lowest(to)) * call.rowBytes);
#pragma unroll
		for (int u = 0; u < U; u++)
			if (first + 32 * u < packs) dev::store_once(at + first + 32 * u, got[u]);
	}
}

DEVICE void copy_scales(const Permute& call, u32 place, u32 row) {
	const u32* from = (const u32*)(call.dispatched + call.scalesAt) + (u64)place * call.scales;
	u32* all = (u32*)(call.permuted + call.toScales);
#pragma unroll 1
	for (u32 to = dev::vote(row != NoRow); to != 0; to &= to - 1) {
		u32* at = all + (u64)dev::shuffle(row, lowest(to)) * call.scales;
#pragma unroll 1
		for (u32 i = dev::thread() % 32; i < call.scales; i += 32) at[i] = from[i];
	}
}

DEVICE u32 parts_of(u32 rowBytes, u32 packs) {
	u32 bytes = 32 * packs * (u32)sizeof(Pack);
	return (rowBytes + bytes - 1) / bytes;
}

// permute copies each row once for each of its experts on this rank, to where the rows of the expert are.
DEVICE void permute(const Permute& call) {
	dev::await_previous();
	Pairs& s = *(Pairs*)dev::shared<sizeof(Pairs)>();
	read_counts(call, (const u32*)(call.dispatched + call.countsAt), s.used);
	u32 used = all_used(call, s.used);
	u32 begin = used * dev::block() / dev::blocks(), end = used * (dev::block() + 1) / dev::blocks();
	count_pairs(call, s, used_place(call, s.used, begin) * call.topK);
	place_experts(call, s);
	clear_places(call, s);
	const int packs = 4;
	u32 lane = dev::thread() % 32, warp = dev::thread() / 32, step = PermuteThreads / call.topK;
	u32 rowParts = parts_of(call.rowBytes, packs), parts = rowParts + (call.scales > 0 ? 1 : 0);
#pragma unroll 1
	for (u32 first = begin; first < end; first += step) {
		u32 count = end - first < step ? end - first : step;
		dev::sync_block();
		place_pairs(call, s, first, count * call.topK);
#pragma unroll 1
		for (u32 i = warp; i < count * parts; i += PermuteWarps) {
			Item item = item_of(i, parts);
			u32 place = used_place(call, s.used, first + item.token);
			u32 row = lane < call.topK ? s.rows[item.token * call.topK + lane] : (u32)NoRow;
			if (item.part < rowParts) copy_part<packs>(call, place, item.part, row);
			else copy_scales(call, place, row);
		}
	}
}

// add_products adds the products of a pack of bfloat16 values and a weight to sums. If any is false, it stores
// the products instead. Each product and each sum is rounded to float32.
DEVICE void add_products(float* sums, bool any, Pack pack, float weight) {
	float row[8];
	BF16::unpack(pack.a, row);
	BF16::unpack(pack.b, row + 4);
	for (int i = 0; i < 8; i++) {
		float product = dev::multiply(row[i], weight);
		sums[i] = any ? sums[i] + product : product;
	}
}

// sum_part adds up a part of the rows of a place in the order of its ids, K rows at a time. row, or NoRow, and
// weight are those of the lane's id. The weights may still be loading when the rows are requested.
template <int K, int U>
DEVICE void sum_part(const Permute& call, u32 place, u32 part, u32 row, u32 weight) {
	u32 bytes = call.computedBytes, packs = bytes / sizeof(Pack), first = part * 32 * U + dev::thread() % 32;
	float sums[U][8] = {};
	bool any = false;
#pragma unroll 1
	for (u32 from = dev::vote(row != NoRow); from != 0;) {
		Pack got[K][U];
		u32 lanes[K];
		bool is[K];
#pragma unroll
		for (int k = 0; k < K; k++) {
			is[k] = from != 0;
			if (!is[k]) continue;
			lanes[k] = lowest(from);
			const Pack* at = (const Pack*)(call.computed + (u64)dev::shuffle(row, lanes[k]) * bytes);
#pragma unroll
			for (int u = 0; u < U; u++)
				if (first + 32 * u < packs) got[k][u] = dev::load_once(at + first + 32 * u);
			from &= from - 1;
		}
#pragma unroll
		for (int k = 0; k < K; k++) {
			if (!is[k]) break;
			float by = dev::from_bits(dev::shuffle(weight, lanes[k]));
#pragma unroll
			for (int u = 0; u < U; u++) add_products(sums[u], any, got[k][u], by);
			any = true;
		}
	}
	Pack* to = (Pack*)(call.returned + (u64)place * bytes);
#pragma unroll
	for (int u = 0; u < U; u++)
		if (first + 32 * u < packs) dev::store_once(to + first + 32 * u, sum_of(sums[u]));
}

// pair_row returns the row of a lane's id of a dispatched row, or NoRow.
DEVICE u32 pair_row(const Permute& call, const Used& s, u32 used, u32 lane) {
	if (lane >= call.topK) return NoRow;
	return ((const u32*)(call.permuted + call.toPlaces))[used_place(call, s, used) * call.topK + lane];
}

// unpermute adds up the computed rows of each place that has a row.
DEVICE void unpermute(const Permute& call) {
	dev::await_previous();
	Used& s = *(Used*)dev::shared<sizeof(Used)>();
	read_counts(call, (const u32*)(call.permuted + call.toReceived), s);
	const int packs = 2;
	u32 lane = dev::thread() % 32, parts = parts_of(call.computedBytes, packs), items = all_used(call, s) * parts;
	u32 step = dev::blocks() * PermuteWarps, i = dev::block() * PermuteWarps + dev::thread() / 32;
	const u32* weights = (const u32*)(call.permuted + call.toWeights);
	u32 next = i < items ? pair_row(call, s, i / parts, lane) : (u32)NoRow;
#pragma unroll 1
	for (; i < items; i += step) {
		Item item = item_of(i, parts);
		u32 row = next, weight = row != NoRow ? weights[row] : 0;
		if (i + step < items) next = pair_row(call, s, (i + step) / parts, lane);
		sum_part<4, packs>(call, used_place(call, s, item.token), item.part, row, weight);
	}
}
