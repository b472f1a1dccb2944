// These route kernels exchange few tokens in lines (see line.h): rows cross the link once, together with their
// flags, without a barrier. The buffers may be in any memory.
//
// Each rank has a region in the exchange memory of each peer. The first chunk of a region holds the number of
// the rank's tokens that have an expert on the peer. These tokens are numbered from 0 in order; the number is
// the place of the token. The chunks of all places follow. Every block computes the places of all tokens, so
// no block waits for another block of its rank.
#pragma once
#include <line.h>
#include <route.h>

enum : u32 { MaxLineTokens = 512, MaxWarps = RouteThreads / 32 };

// Places is the shared memory of a block: the ranks of each token, and its place on each of them.
struct Places {
	u16 of[MaxRanks][MaxLineTokens];
	u16 own[MaxLineTokens];  // the token at each place of this rank on itself: the inverse of of[rank]
	u8 ranks[MaxLineTokens];
	u32 votes[MaxRanks][MaxWarps], unknown[MaxWarps], counts[MaxRanks];
};

// place_all fills Places. All threads of the block call it.
template <int W>
DEVICE void place_all(const Route& call, const Owners& owners, Places& s) {
	u32 me = dev::thread(), lane = me % 32, warp = me / 32, before[W] = {}, unknowns = 0;
#pragma unroll 1
	for (u32 first = 0; first == 0 || first < call.tokens; first += dev::threads()) {
		u32 token = first + me, unknown = 0, ranks = 0;
		if (token < call.tokens) ranks = ranks_of(call, owners, load_ids(call, token), unknown);
		if (first > 0) dev::sync_block();
		u32 votes[W];
#pragma unroll
		for (int r = 0; r < W; r++) {
			votes[r] = dev::vote(ranks >> r & 1);
			if (lane == r) s.votes[r][warp] = votes[r];
		}
#pragma unroll
		for (int bit = 0; bit < 5; bit++) unknowns += dev::count_bits(dev::vote(unknown >> bit & 1)) << bit;
		dev::sync_block();
		u32 warps = call.tokens - first + 31 < dev::threads() ? (call.tokens - first + 31) / 32 : dev::threads() / 32;
#pragma unroll
		for (int r = 0; r < W; r++) {
			u32 place = before[r] + dev::count_bits(votes[r] & ((1u << lane) - 1));
#pragma unroll 1
			for (u32 other = 0; other < warps; other++) {
				u32 n = dev::count_bits(s.votes[r][other]);
				if (other < warp) place += n;
				before[r] += n;
			}
			if (!(ranks >> r & 1)) continue;
			s.of[r][token] = (u16)place;
			if (r == call.rank) s.own[place] = (u16)token;
		}
		if (token < call.tokens) s.ranks[token] = (u8)ranks;
	}
	if (lane == 0) s.unknown[warp] = unknowns;
#pragma unroll
	for (int r = 0; r < W; r++)
		if (me == r) s.counts[r] = before[r];
	dev::sync_block();
}

// RouteLines is the part that both kernels share. An item is a chunk of a token or of a place. Items are
// numbered from 0.
template <int W>
struct RouteLines {
	const Route& call;
	Places& s;
	Worker<Pack> w;
	Owners owners;
	u32 chunks, stride;  // number of chunks of a place; bytes of a region
	u32 inverse;         // 2^31 / chunks, rounded up
	u32 counts[W];       // tokens of each rank with an expert here; valid after await_counts

	// words is the number of words of a token that follow its row. After the constructor, a warp loads its
	// first input. It then calls place_all, which takes about as long as the load and so hides it.
	MEMBER RouteLines(const Route& call, u32 words)
			: call(call), s(*(Places*)dev::shared<sizeof(Places)>()), w(worker<Pack>(call, nullptr)), owners(owners_of(call)) {
		chunks = row_chunks() + chunks_of<Pack>(words * 4);
		stride = (1 + call.maxTokens * chunks) * Chunk<Pack>::Bytes;
		inverse = ((1u << 31) + chunks - 1) / chunks;
	}

	MEMBER u32 row_chunks() const { return chunks_of<Pack>(call.rowBytes); }
	// item_at returns the token or place, and the chunk, of an item.
	MEMBER Item item_at(u32 i) const {
		u32 token = (u32)((u64)i * inverse >> 31);
		return {token, i - token * chunks};
	}
	// load_row and store_row access a thread's share of a chunk of a row.
	MEMBER bool in_row(u32 chunk) const { return chunk * Chunk<Pack>::Data + w.offset < call.rowBytes; }
	MEMBER Pack load_row(const char* rows, u64 at, u32 chunk) const {
		Pack part = {};
		if (in_row(chunk)) take(part, rows + at * call.rowBytes + chunk * Chunk<Pack>::Data + w.offset, w.flagged);
		return part;
	}
	MEMBER void store_row(char* rows, u64 at, u32 chunk, Pack part) const {
		if (in_row(chunk)) put(part, rows + at * call.rowBytes + chunk * Chunk<Pack>::Data + w.offset, w.flagged);
	}
	MEMBER bool is_peer(u32 r) const { return r < call.ranks && r != call.rank; }

	// send_item sends a chunk of a place to a rank.
	MEMBER void send_item(u32 r, u32 place, u32 chunk, Pack part) const {
		send(call, w, r, call.rank * stride, 1 + place * chunks + chunk, part);
	}

	// meet runs on the header warp. It sends the first chunk of each region, and exchanges headers.
	MEMBER bool meet() const {
		if (!ok(w)) return false;
#pragma unroll
		for (int k = 1; k < W; k++) {
			u32 r = (call.rank + k) % W;
			if (r < call.ranks) send(call, w, r, call.rank * stride, 0, Pack{s.counts[r], 0});
		}
		return exchange_headers(call, w);
	}

	// await_counts receives the numbers of rows. It returns false if the wait must end.
	MEMBER bool await_counts() {
		Pack got[W];
		if (!collect<Pack, W>(call, w, peers(call, (1u << call.ranks) - 1), slot(call, call.rank, w, 0), stride, got)) return false;
		set_counts(got);
		return true;
	}
	MEMBER void set_counts(const Pack* heads) {
#pragma unroll
		for (int r = 0; r < W; r++) counts[r] = is_peer(r) ? (u32)heads[r].a : r < call.ranks ? s.counts[r] : 0;
	}

	// await_first receives the numbers of rows. It also receives an item from each peer that sends this item.
	MEMBER bool await_first(Item item, Pack* got) {
		Pack heads[W];
		const char* lines = slot(call, call.rank, w, 0);
		u32 chunk = 1 + item.token * chunks + item.part;
		u64 flag = flag_of(w.epoch(), call.digest);
		dev::sync_warp();
		for (Guard guard;;) {
#pragma unroll
			for (int r = 0; r < W; r++) {
				if (!is_peer(r)) continue;
				heads[r] = dev::load_line((const Pack*)(lines + r * stride));
				got[r] = dev::load_line((const Pack*)(lines + r * stride + chunk * Chunk<Pack>::Bytes));
			}
			bool ready = true;
#pragma unroll
			for (int r = 0; r < W; r++) {
				if (!is_peer(r) || !w.flagged) continue;
				bool ends = item.token >= (u32)heads[r].a;
				ready = ready && flag_in(heads[r]) == flag && (ends || flag_in(got[r]) == flag);
			}
			if (dev::all_warp(ready)) break;
			if (dev::any_warp(!keep_waiting(guard, call, w.epoch()))) return false;
		}
		set_counts(heads);
		return true;
	}

	// most returns the largest number of rows.
	MEMBER u32 most() const {
		u32 n = 0;
#pragma unroll
		for (int r = 0; r < W; r++)
			if (counts[r] > n) n = counts[r];
		return n;
	}

	// await receives the chunks of a set of ranks. places[r] is the place in the region of rank r. It returns
	// false if the wait must end.
	MEMBER bool await(u32 from, const u32* places, u32 chunk, Pack* got) const {
		const char* lines = slot(call, call.rank, w, 0);
		u64 flag = flag_of(w.epoch(), call.digest);
		dev::sync_warp();
		for (Guard guard;;) {
#pragma unroll
			for (int r = 0; r < W; r++)
				if (from >> r & 1)
					got[r] = dev::load_line((const Pack*)(lines + r * stride + (1 + places[r] * chunks + chunk) * Chunk<Pack>::Bytes));
			bool ready = true;
#pragma unroll
			for (int r = 0; r < W; r++)
				if (from >> r & 1) ready = ready && (!w.flagged || flag_in(got[r]) == flag);
			if (dev::all_warp(ready)) return true;
			if (dev::any_warp(!keep_waiting(guard, call, w.epoch()))) return false;
		}
	}
};

// load_words and store_words access the words of a token that follow its row: scales, weights and ids. They
// access count words, starting with word i. store_words writes NoExpert instead of ids outside
// [first, first + size), which are experts of other ranks.
NOINLINE Pack load_words(const Route& call, u32 token, u32 i, u32 count) {
	u32 words[4] = {};
#pragma unroll
	for (u32 k = 0; k < 4; k++, i++) {
		u32 at = i - call.scales;
		if (k >= count || i >= call.scales + 2 * call.topK) continue;
		if (i < call.scales) words[k] = call.rowScales[(u64)token * call.scales + i];
		else if (at < call.topK) words[k] = call.weights[(u64)token * call.topK + at];
		else words[k] = call.ids[(u64)token * call.topK + at - call.topK];
	}
	return {words[0] | (u64)words[1] << 32, words[2] | (u64)words[3] << 32};
}
NOINLINE void store_words(const Route& call, u64 token, u32 i, u32 count, Pack part, u32 first, u32 size) {
	char* all = call.all[call.rank];
#pragma unroll 1
	for (u32 k = 0; k < count && i < call.scales + 2 * call.topK; k++, i++) {
		u32 at = i - call.scales, word = (u32)((k < 2 ? part.a : part.b) >> 32 * (k & 1));
		if (i < call.scales) ((u32*)(all + call.scalesAt))[token * call.scales + i] = word;
		else if (at < call.topK) ((u32*)(all + call.weightsAt))[token * call.topK + at] = word;
		else ((u32*)(all + call.idsAt))[token * call.topK + at - call.topK] = word - first < size ? word : (u32)NoExpert;
	}
}

// DispatchLines moves the scales, the weights and the ids of a token in the chunks after its row.
template <int W>
struct DispatchLines : RouteLines<W> {
	u32 firstExpert, ownExperts;

	MEMBER DispatchLines(const Route& call) : RouteLines<W>(call, call.scales + 2 * call.topK) {
		u32 each = call.experts / call.ranks, more = call.experts % call.ranks;
		firstExpert = each * call.rank + (call.rank < more ? call.rank : more);
		ownExperts = each + (call.rank < more ? 1 : 0);
	}

	// first_word returns the index of a thread's first word in a chunk that follows the row.
	MEMBER u32 first_word(u32 chunk) const {
		return ((chunk - this->row_chunks()) * Chunk<Pack>::Data + this->w.offset) / 4;
	}
	MEMBER Pack load(u32 token, u32 chunk) const {
		if (chunk < this->row_chunks()) return this->load_row(this->call.own, token, chunk);
		return load_words(this->call, token, first_word(chunk), this->w.size / 4);
	}
	MEMBER void store(u64 at, u32 chunk, Pack part) const {
		if (chunk < this->row_chunks()) return this->store_row(this->call.all[this->call.rank], at, chunk, part);
		store_words(this->call, at, first_word(chunk), this->w.size / 4, part, firstExpert, ownExperts);
	}

	MEMBER void send_token(Item item, Pack part) const {
		u32 to = peers(this->call, this->s.ranks[item.token]);
#pragma unroll
		for (int k = 1; k < W; k++) {
			u32 r = (this->call.rank + k) % W;
			if (to >> r & 1) this->send_item(r, this->s.of[r][item.token], item.part, part);
		}
	}
	// load_first loads the first item of a warp if there is one.
	MEMBER Pack load_first() const {
		Item item = this->item_at(this->w.warp);
		return this->w.warp < this->call.tokens * this->chunks ? load(item.token, item.part) : Pack{};
	}
	// send_all loads the next item before it sends the current one.
	MEMBER void send_all(Pack part) const {
		u32 items = this->call.tokens * this->chunks;
#pragma unroll 1
		for (u32 i = this->w.warp; i < items; i += this->w.warps) {
			Item item = this->item_at(i), next = this->item_at(i + this->w.warps);
			Pack after;
			if (i + this->w.warps < items) after = load(next.token, next.part);
			send_token(item, part);
			part = after;
		}
	}

	// clear_unused writes NoExpert to the ids of all places without a row.
	MEMBER void clear_unused() const {
		const Route& call = this->call;
		u32* ids = (u32*)(call.all[call.rank] + call.idsAt);
#pragma unroll
		for (int r = 0; r < W; r++) {
			if (r >= call.ranks) break;
			for (u32 i = this->counts[r] * call.topK + this->w.warp * 32 + this->w.lane; i < call.maxTokens * call.topK;
			     i += this->w.warps * 32)
				ids[place(call, r, 0) * call.topK + i] = NoExpert;
		}
	}
	MEMBER Pack load_own(Item item) const {
		return item.token < this->s.counts[this->call.rank] ? load(this->s.own[item.token], item.part) : Pack{};
	}
	MEMBER void store_item(Item item, Pack own, const Pack* got) const {
		const Route& call = this->call;
#pragma unroll
		for (int r = 0; r < W; r++)
			if (item.token < this->counts[r]) store(place(call, r, item.token), item.part, r == call.rank ? own : got[r]);
	}
	MEMBER bool recv_all() {
		u32 i = this->w.warp;
		Pack got[W];
		if (W <= 4 && i < this->call.maxTokens * this->chunks) {
			Item item = this->item_at(i);
			Pack own = load_own(item);
			if (!this->await_first(item, got)) return false;
			store_item(item, own, got);
			i += this->w.warps;
		} else if (!this->await_counts()) {
			return false;
		}
		clear_unused();
		u32 items = this->most() * this->chunks;
#pragma unroll 1
		for (; i < items; i += this->w.warps) {
			Item item = this->item_at(i);
			u32 from = 0, places[W];
#pragma unroll
			for (int r = 0; r < W; r++) {
				places[r] = item.token;
				if (item.token < this->counts[r]) from |= 1u << r;
			}
			Pack own = load_own(item);
			if (!this->await(peers(this->call, from), places, item.part, got)) return false;
			store_item(item, own, got);
		}
		return true;
	}

	// put_counts runs on the header warp. If the call has failed, it writes zeros.
	MEMBER void put_counts(bool valid) const {
		const Route& call = this->call;
		u32* to = (u32*)(call.all[call.rank] + call.countsAt);
		u32 unknown = 0;
		for (u32 i = 0; i < dev::threads() / 32; i++) unknown += this->s.unknown[i];
#pragma unroll
		for (int r = 0; r < W; r++)
			if (r < call.ranks && this->w.lane == r) to[r] = valid ? this->counts[r] : 0;
		if (this->w.lane == call.ranks) to[call.ranks] = valid ? unknown : 0;
	}
	// poison poisons a warp's items in the places of all ranks.
	MEMBER void poison() const {
#pragma unroll 1
		for (u32 i = this->w.warp; i < this->call.maxTokens * this->chunks; i += this->w.warps)
#pragma unroll 1
			for (u32 r = 0; r < this->call.ranks; r++)
				store(place(this->call, r, this->item_at(i).token), this->item_at(i).part, Pack{Poison, Poison});
	}
};

// line_dispatch runs a dispatch in lines. After a fault it neither sends nor receives.
template <int W>
DEVICE void line_dispatch(const Route& call) {
	DispatchLines<W> s(call);
	Pack first = s.load_first();
	place_all<W>(call, s.owners, s.s);
	bool header = s.w.sends_headers(), done = ok(s.w);
	if (header) {
		done = done && s.meet() && s.await_counts();
		s.put_counts(done);
	} else if (done) {
		s.send_all(first);
		done = s.recv_all();
	}
	if (!done && !header) s.poison();
	finish(call, s.w.epoch());
}

// CombineLines returns the rows of each place to the owner of the token, which adds them up.
template <int W>
struct CombineLines : RouteLines<W> {
	MEMBER CombineLines(const Route& call) : RouteLines<W>(call, 0) {}

	MEMBER Pack load(u32 r, Item item) const {
		return this->load_row(this->call.all[this->call.rank], place(this->call, r, item.token), item.part);
	}
	// load_place loads an item for each peer: a chunk of a row that an expert of this rank has computed.
	MEMBER void load_place(Item item, Pack* parts) const {
#pragma unroll
		for (int k = 1; k < W; k++) {
			u32 r = (this->call.rank + k) % W;
			if (r < this->call.ranks) parts[k] = load(r, item);
		}
	}
	// load_first loads a warp's first item, before the numbers of rows are known.
	MEMBER void load_first(Pack* parts) const {
		if (this->w.warp < this->call.maxTokens * this->chunks) load_place(this->item_at(this->w.warp), parts);
	}
	// send_all sends the rows that the peers expect.
	MEMBER bool send_all(Pack* parts) {
		if (!this->await_counts()) return false;
		u32 items = this->most() * this->chunks;
#pragma unroll 1
		for (u32 i = this->w.warp; i < items; i += this->w.warps) {
			Item item = this->item_at(i);
#pragma unroll
			for (int k = 1; k < W; k++) {
				u32 r = (this->call.rank + k) % W;
				if (r < this->call.ranks && item.token < wanted(r)) this->send_item(r, item.token, item.part, parts[k]);
			}
			if (i + this->w.warps < items) load_place(this->item_at(i + this->w.warps), parts);
		}
		return true;
	}
	// wanted returns the number of rows that rank r expects. It does not index counts by a variable, which
	// would move them to local memory.
	MEMBER u32 wanted(u32 r) const {
		u32 n = 0;
#pragma unroll
		for (int i = 0; i < W; i++)
			if (i == r) n = this->counts[i];
		return n;
	}

	MEMBER bool recv_item(Item item) const {
		const Route& call = this->call;
		u32 token = item.token, ranks = this->s.ranks[token], places[W];
		Pack got[W], mine;
		float sums[8] = {};
		bool any = false;
#pragma unroll
		for (int r = 0; r < W; r++)
			if (ranks >> r & 1) places[r] = this->s.of[r][token];
		if (ranks >> call.rank & 1) mine = load(call.rank, {this->s.of[call.rank][token], item.part});
		if (!this->await(peers(call, ranks), places, item.part, got)) return false;
#pragma unroll
		for (int r = 0; r < W; r++)
			if (ranks >> r & 1) add_row(sums, any, r == call.rank ? mine : got[r]);
		this->store_row(call.own, token, item.part, sum_of(sums));
		return true;
	}
	MEMBER bool recv_all() const {
#pragma unroll 1
		for (u32 i = this->w.warp; i < this->call.tokens * this->chunks; i += this->w.warps)
			if (!recv_item(this->item_at(i))) return false;
		return true;
	}
	// poison poisons a warp's items or, on the header warp, the first chunk of each row.
	MEMBER void poison(bool header) const {
		u32 step = header ? this->chunks : this->w.warps;
#pragma unroll 1
		for (u32 i = header ? 0 : this->w.warp; i < this->call.tokens * this->chunks; i += step)
			this->store_row(this->call.own, this->item_at(i).token, this->item_at(i).part, Pack{Poison, Poison});
	}
};

// line_combine runs a combine in lines. If only the header warp fails, it poisons the first chunk of each row
// after all warps of its block have ended.
template <int W>
DEVICE void line_combine(const Route& call) {
	CombineLines<W> s(call);
	Pack first[W];
	s.load_first(first);
	place_all<W>(call, s.owners, s.s);
	bool header = s.w.sends_headers(), done = ok(s.w);
	if (header) done = done && s.meet();
	else if (done) done = s.send_all(first) && s.recv_all();
	if (!done && !header) s.poison(false);
	finish(call, s.w.epoch());
	if (!done && header) s.poison(true);
}
