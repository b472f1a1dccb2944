// Route kernels in lines exchange few tokens without a barrier: rows cross the link once, with their flags,
// as in line kernels. The buffers may be in any memory.
//
// Each rank has a region in the exchange memory of each peer, with as many chunks as its tokens can have.
// Dispatch puts the row of token t into place t of the region, so a warp needs the ids of only one token to
// send it. Rows for the rank's own experts go through its own memory. A line before the regions has the set of
// the tokens that are sent, from which the receiver computes where they belong. Combine sends the same line to
// ask for the rows of these tokens.
#pragma once
#include <line.h>
#include <route.h>

enum : u32 { MaxLineTokens = 512, SetWords = MaxLineTokens / 32, MaxWarps = RouteThreads / 32 };

// Sets is the shared memory of a block.
struct Sets {
	alignas(16) u32 of[MaxRanks][SetWords];  // the set of the tokens that go to each rank
	u8 ranks[MaxLineTokens];                 // the set of the ranks of each token
	u32 unknown[MaxWarps];                   // ids of unknown experts, by warp
};

// SomeIds holds ids of four tokens. A group of lanes has the ids of a token. If topK is no power of two, the
// last lanes of a group have none.
struct SomeIds {
	u32 of[4];
};

// Table computes the sets of a rank's tokens. All threads of a block do that together.
struct Table {
	const Route& call;
	u32 lane, warp, warps, shift;  // a group has 1 << shift lanes

	MEMBER Table(const Route& call)
			: call(call), lane(dev::thread() % 32), warp(dev::thread() / 32), warps(dev::threads() / 32) {
		shift = (call.topK > 1) + (call.topK > 2) + (call.topK > 4) + (call.topK > 8);
	}

	// token_of returns a lane's token in a warp's i-th access.
	MEMBER u32 token_of(u32 i) const { return ((i * warps + warp) << (5 - shift)) + (lane >> shift); }
	MEMBER SomeIds load(u32 first) const {
		u32 k = lane % (1u << shift);
		SomeIds ids;
#pragma unroll
		for (u32 i = 0; i < 4; i++) {
			u32 token = token_of(first + i);
			ids.of[i] = token < call.tokens && k < call.topK ? call.ids[token * call.topK + k] : (u32)NoExpert;
		}
		return ids;
	}
	// fill computes the sets. ids is load(0).
	template <int W>
	MEMBER void fill(Sets& s, SomeIds ids) const {
		u32 unknown = 0;
#pragma unroll 1
		for (u32 first = 0; first * warps << (5 - shift) < call.tokens; first += 4) {
			u32 ranks = 0;
			if (first > 0) ids = load(first);
#pragma unroll
			for (u32 i = 0; i < 4; i++) {
				u32 rank = owner(call, ids.of[i]);
				if (rank != NoRank) ranks |= 1u << (8 * i + rank);
				else if (ids.of[i] != NoExpert) unknown++;
			}
#pragma unroll 1
			for (u32 step = 1; step < 1u << shift; step *= 2) ranks |= dev::shuffle(ranks, lane ^ step);
#pragma unroll
			for (u32 i = 0; i < 4; i++) {
				u32 token = token_of(first + i);
				if (lane % (1u << shift) == 0 && token < call.tokens) s.ranks[token] = (u8)(ranks >> 8 * i);
			}
		}
		unknown = dev::sum_warp(unknown);
		if (lane == 0) s.unknown[warp] = unknown;
		dev::sync_block();
#pragma unroll 1
		for (u32 word = warp; word < SetWords; word += warps) {
			u32 token = word * 32 + lane, ranks = token < call.tokens ? s.ranks[token] : 0;
#pragma unroll
			for (int r = 0; r < W; r++) {
				u32 set = dev::vote(ranks >> r & 1);
				if (lane == r) s.of[r][word] = set;
			}
		}
		dev::sync_block();
	}
};

// TokenSets holds a set of tokens for each rank, on all threads of a warp. Of each group of eight threads,
// which have the set of a rank, the first four have four words each.
template <int W>
struct TokenSets {
	enum : u32 { Packs = (W + 3) / 4 };
	Pack of[Packs];

	MEMBER u32 word(int p, int i) const { return (u32)((i < 2 ? of[p].a : of[p].b) >> 32 * (i & 1)); }
	// count returns the size of each set.
	MEMBER void count(u32* sizes) const {
#pragma unroll
		for (int p = 0; p < Packs; p++) {
			u32 all = 0;
#pragma unroll
			for (int i = 0; i < 4; i++) all += dev::count_bits(word(p, i));
			all += dev::shuffle(all, dev::thread() % 32 ^ 1);
			all += dev::shuffle(all, dev::thread() % 32 ^ 2);
#pragma unroll
			for (int r = 4 * p; r < 4 * p + 4 && r < W; r++) sizes[r] = dev::shuffle(all, r % 4 * 8);
		}
	}
	// locate returns the set of the ranks whose sets have a token, and the number of earlier tokens in each
	// set.
	MEMBER u32 locate(u32 lane, u32 token, u32* before) const {
		u32 found = 0;
#pragma unroll
		for (int p = 0; p < Packs; p++) {
			u32 both = 0;  // the number of earlier tokens, and at bit 16 whether the set has the token
#pragma unroll
			for (int i = 0; i < 4; i++) {
				u32 set = word(p, i), first = (lane % 8 * 4 + i) * 32, at = token - first;
				u32 earlier = token < first ? 0 : at >= 32 ? ~0u : (1u << at) - 1;
				both += dev::count_bits(set & earlier);
				if (at < 32) both += (set >> at & 1) << 16;
			}
			both += dev::shuffle(both, lane ^ 1);
			both += dev::shuffle(both, lane ^ 2);
#pragma unroll
			for (int r = 4 * p; r < 4 * p + 4 && r < W; r++) {
				u32 own = dev::shuffle(both, r % 4 * 8);
				before[r] = own & 0xffff;
				found |= (own >> 16 & 1) << r;
			}
		}
		return found;
	}
};

// Hints of W ranks are numbers of rows in 32 / W bits each. If those do not suffice, the numbers are rounded up.
template <int W>
struct Hints {
	enum : u32 { Bits = 32 / W, Most = (1u << Bits) - 1 };
	DEVICE u32 of(u32 rows, u32 maxTokens, u32 r) { return (rows * Most + maxTokens - 1) / maxTokens << r * Bits; }
	DEVICE u32 rows(u32 hints, u32 maxTokens, u32 r) { return (hints >> r * Bits & Most) * maxTokens / Most; }
};

// check_wait runs every PollsAtOnce polls. It returns the time of its first run, or Ended if the wait must end.
// It is not inlined, because most waits are shorter.
enum : u64 { Ended = ~0ull };
NOINLINE u64 check_wait(const Route& call, u32 polls, u64 since, u64 epoch) {
	Guard guard{polls - 1, since};
	return keep_waiting(guard, call, epoch) ? guard.since : (u64)Ended;
}

// Wait limits the waits of a warp, whose threads poll together.
struct Wait {
	u32 polls = 0;
	u64 since = 0;

	// goes_on runs between two polls.
	MEMBER bool goes_on(const Route& call, u64 epoch) {
		if (++polls % dev::PollsAtOnce != 0) {
			dev::pause();
			return true;
		}
		since = check_wait(call, polls, since, epoch);
		return !dev::any_warp(since == Ended);
	}
};

// RouteLines is the part that both kernels share. An item is a chunk of a token or of a place. Items are
// numbered from 0.
template <int W>
struct RouteLines {
	const Route& call;
	Table table;
	Sets& s;
	Worker<Pack> w;
	u32 stride;  // of a region, in bytes

	MEMBER RouteLines(const Route& call)
			: call(call), table(call), s(*(Sets*)dev::shared<sizeof(Sets)>()), w(worker<Pack>(call, nullptr)) {
		stride = call.maxTokens * call.chunks * Chunk<Pack>::Bytes;
	}

	// item_at returns the token or place, and the chunk, of an item.
	MEMBER Item item_at(u32 i) const {
		u32 token = (u32)((u64)i * call.inverse >> 31);
		return {token, i - token * call.chunks};
	}
	// load_row and store_row access a thread's share of a chunk of a row.
	MEMBER bool in_row(u32 chunk) const { return chunk * Chunk<Pack>::Data + w.offset < call.rowBytes; }
	MEMBER Pack load_row(const char* rows, u32 at, u32 chunk) const {
		Pack part = {};
		if (in_row(chunk)) take(part, rows + (u64)at * call.rowBytes + chunk * Chunk<Pack>::Data + w.offset, w.flagged);
		return part;
	}
	MEMBER void store_row(char* rows, u32 at, u32 chunk, Pack part) const {
		if (in_row(chunk)) put(part, rows + (u64)at * call.rowBytes + chunk * Chunk<Pack>::Data + w.offset, w.flagged);
	}
	// place_of returns the offset in rows of a place for a rank's token.
	MEMBER u32 place_of(u32 r, u32 place) const { return r * call.maxTokens + place; }
	MEMBER bool is_peer(u32 r) const { return r < call.ranks && r != call.rank; }

	// uses reports whether a thread's line has data. left counts the bytes from the start of its chunk.
	MEMBER bool uses(u32 left) const {
		u32 line = w.lane / Chunk<Pack>::Threads;
		return line * (Chunk<Pack>::Threads - 1) * (u32)sizeof(Pack) < left;
	}

	// lines_of returns the address of a thread's share of an item in the region of a rank.
	MEMBER char* lines_of(u32 to, u32 r, u32 item) const {
		return slot(call, to, w, SetBytes) + r * stride + item * Chunk<Pack>::Bytes;
	}
	// The lines with sets precede the regions. Line r is from rank r.
	enum : u32 { SetBytes = MaxRanks * LineBytes };

	// send_item sends an item to a rank.
	MEMBER void send_item(u32 r, u32 item, bool used, Pack part) const {
		if (w.flagged) put_flag(part, flag_of(w.epoch(), call.digest));
		dev::sync_warp();
		if (used) dev::store_line((Pack*)lines_of(r, call.rank, item), part);
	}

	// own_sets returns the sets of this rank's tokens.
	MEMBER TokenSets<W> own_sets() const {
		TokenSets<W> sets;
#pragma unroll
		for (int p = 0; p < TokenSets<W>::Packs; p++) {
			u32 r = 4 * p + w.lane / 8;
			sets.of[p] = r < W && w.lane % 8 < 4 ? *(const Pack*)&s.of[r][w.lane % 4 * 4] : Pack{};
		}
		return sets;
	}
	// greet and meet run on the header warp, before and after the table is complete. greet sends the headers.
	// meet sends each rank, and itself, the set of its tokens, and waits for the headers of the others.
	MEMBER void greet() const {
		if (ok(w) && w.lane < call.ranks && w.lane != call.rank) post_header(call, w.lane, w.epoch());
	}
	MEMBER bool meet() const {
		TokenSets<W> sets = own_sets();
		if (!ok(w)) return false;
		u32 end = dev::load_relaxed(&state(call, 0)->fault);
#pragma unroll
		for (int p = 0; p < TokenSets<W>::Packs; p++) {
			u32 r = 4 * p + w.lane / 8;
			u64 at = sizeof(Exchange) + (w.epoch() & 1) * HalfBytes + call.rank * LineBytes + w.lane % 8 * sizeof(Pack);
			if (w.flagged) put_flag(sets.of[p], flag_of(w.epoch(), call.digest));
			dev::sync_warp();
			if (r < call.ranks) dev::store_line((Pack*)(call.exchange[r] + at), sets.of[p]);
		}
		bool met = w.lane >= call.ranks || w.lane == call.rank || await_header<false>(call, w.lane, w.epoch());
		return dev::all_warp(met && !ended(call, end));
	}

	// poll_sets loads the sets of all ranks, and reports whether they are there.
	MEMBER bool poll_sets(TokenSets<W>& sets) const {
		bool ready = true;
#pragma unroll
		for (int p = 0; p < TokenSets<W>::Packs; p++) {
			sets.of[p] = Pack{};
			if (4 * p + w.lane / 8 < call.ranks)
				sets.of[p] = dev::load_line((const Pack*)(slot(call, call.rank, w, 0) + p * 32 * sizeof(Pack)));
		}
#pragma unroll
		for (int p = 0; p < TokenSets<W>::Packs; p++)
			if (w.flagged && 4 * p + w.lane / 8 < call.ranks)
				ready = ready && flag_in(sets.of[p]) == flag_of(w.epoch(), call.digest);
		return dev::all_warp(ready);
	}
	// await_sets returns false if the wait must end.
	MEMBER bool await_sets(TokenSets<W>& sets) const {
		for (Wait wait; !poll_sets(sets);)
			if (!wait.goes_on(call, w.epoch())) return false;
		return true;
	}
};

// TokenWords has the addresses of a token's words: its scales, weights and ids.
struct TokenWords {
	u32 *scales, *weights, *ids;

	// at returns the address of a word, counted over all three.
	MEMBER u32* at(u32 scaleCount, u32 topK, u32 i) const {
		u32 k = i - scaleCount;
		return i < scaleCount ? scales + i : k < topK ? weights + k : ids + (k - topK);
	}
};

// load_words and store_words access up to four words, from word i on. They are not inlined, which keeps the
// path of rows short. store_words replaces ids that are not among the experts from first on.
NOINLINE Pack load_words(TokenWords from, u32 scaleCount, u32 topK, u32 i, u32 count) {
	u32 got[4] = {};
#pragma unroll
	for (u32 k = 0; k < 4; k++)
		if (k < count) got[k] = *from.at(scaleCount, topK, i + k);
	return {got[0] | (u64)got[1] << 32, got[2] | (u64)got[3] << 32};
}
NOINLINE void store_words(
		TokenWords to, u32 scaleCount, u32 topK, u32 i, u32 count, Pack part, u32 first, u32 experts) {
#pragma unroll
	for (u32 k = 0; k < 4; k++) {
		u32 word = (u32)((k < 2 ? part.a : part.b) >> 32 * (k & 1));
		if (k >= count) break;
		if (i + k >= scaleCount + topK && word - first >= experts) word = NoExpert;
		*to.at(scaleCount, topK, i + k) = word;
	}
}

// DispatchLines moves the scales, the weights and the ids of a token in the chunks after its row.
template <int W>
struct DispatchLines : RouteLines<W> {
	u32 rowChunks;

	MEMBER DispatchLines(const Route& call) : RouteLines<W>(call) { rowChunks = chunks_of<Pack>(call.rowBytes); }

	MEMBER u32 words() const { return this->call.scales + 2 * this->call.topK; }
	MEMBER bool uses_line(u32 chunk) const {
		u32 bytes = chunk < rowChunks ? this->call.rowBytes : words() * 4;
		return this->uses(bytes - (chunk < rowChunks ? chunk : chunk - rowChunks) * Chunk<Pack>::Data);
	}
	// first_word returns the index of a thread's first word in a chunk that follows the row.
	MEMBER u32 first_word(u32 chunk) const { return ((chunk - rowChunks) * Chunk<Pack>::Data + this->w.offset) / 4; }
	// word_count returns the number of words that a thread moves, from word i on.
	MEMBER u32 word_count(u32 i) const {
		u32 left = i < words() ? words() - i : 0, most = this->w.size / 4;
		return left < most ? left : most;
	}
	MEMBER TokenWords words_at(u64 scales, u64 weights, u64 ids, u32 at) const {
		u32 step = this->call.topK;
		return {(u32*)scales + at * this->call.scales, (u32*)weights + at * step, (u32*)ids + at * step};
	}
	MEMBER Pack load(u32 token, u32 chunk) const {
		const Route& call = this->call;
		if (chunk < rowChunks) return this->load_row(call.own, token, chunk);
		u32 i = first_word(chunk);
		TokenWords from = words_at((u64)call.rowScales, (u64)call.weights, (u64)call.ids, token);
		return load_words(from, call.scales, call.topK, i, word_count(i));
	}
	MEMBER void store(u32 at, u32 chunk, Pack part) const {
		const Route& call = this->call;
		char* all = call.all[call.rank];
		if (chunk < rowChunks) return this->store_row(all, at, chunk, part);
		u32 i = first_word(chunk);
		TokenWords to = words_at((u64)all + call.scalesAt, (u64)all + call.weightsAt, (u64)all + call.idsAt, at);
		store_words(to, call.scales, call.topK, i, word_count(i), part, call.firstExpert, call.ownExperts);
	}

	// Part is a thread's share of an item, and an id of its token.
	struct Part {
		Pack data;
		u32 id;
	};
	MEMBER Part load_item(u32 i) const {
		const Route& call = this->call;
		Item item = this->item_at(i);
		Part part = {{}, (u32)NoExpert};
		if (item.token >= call.tokens) return part;
		if (this->w.lane < call.topK) part.id = call.ids[item.token * call.topK + this->w.lane];
		part.data = load(item.token, item.part);
		return part;
	}
	MEMBER void send_part(u32 i, Part part) const {
		const Route& call = this->call;
		bool used = uses_line(this->item_at(i).part);
		u32 rank = owner(call, part.id), to = dev::or_warp(rank != NoRank ? 1u << rank : 0);
#pragma unroll
		for (int k = 1; k <= W; k++) {
			u32 r = (call.rank + k) % W;
			if (to >> r & 1) this->send_item(r, i, used, part.data);
		}
	}
	// send_all loads the next item before it sends the current one.
	MEMBER void send_all(Part part) const {
		u32 items = this->call.tokens * this->call.chunks;
#pragma unroll 1
		for (u32 i = this->w.warp; i < items; i += this->w.warps) {
			Part next;
			if (i + this->w.warps < items) next = load_item(i + this->w.warps);
			send_part(i, part);
			part = next;
		}
	}

	// keep_hints stores how many rows of each rank the next combine probably returns. The threads that write
	// a state also write its hints.
	MEMBER void keep_hints(const u32* counts) const {
		u32 hints = 0;
		if (dev::block() + dev::thread() / 32 * 32 * dev::blocks() >= MaxBlocks) return;
#pragma unroll
		for (int r = 0; r < W; r++)
			if (this->w.lane == r) hints = Hints<W>::of(counts[r], this->call.maxTokens, r);
		hints = dev::or_warp(hints);
#pragma unroll 1
		for (u32 i = dev::block() + dev::thread() * dev::blocks(); i < MaxBlocks; i += dev::threads() * dev::blocks())
			dev::store_relaxed(&state(this->call, i)->hints, hints);
	}
	// clear_unused writes NoExpert to the ids of all places without a row.
	MEMBER void clear_unused(const u32* counts) const {
		const Route& call = this->call;
		u32 *ids = (u32*)(call.all[call.rank] + call.idsAt), first = this->w.warp * 32 + this->w.lane;
#pragma unroll
		for (int r = 0; r < W; r++) {
			if (r >= call.ranks) break;
#pragma unroll 1
			for (u32 i = counts[r] * call.topK + first; i < call.maxTokens * call.topK; i += this->w.warps * 32)
				ids[this->place_of(r, 0) * call.topK + i] = NoExpert;
		}
	}
	// recv_all receives the items of a warp. It polls the first item together with the sets.
	MEMBER bool recv_all() const {
		const Route& call = this->call;
		u32 items = call.maxTokens * call.chunks, from = (1u << call.ranks) - 1, before[W];
		u64 flag = flag_of(this->w.epoch(), call.digest);
		TokenSets<W> sets;
		bool known = false;
#pragma unroll 1
		for (u32 i = this->w.warp; i < items || !known; i += this->w.warps) {
			Item item = this->item_at(i);
			bool used = i < items && uses_line(item.part);
			Pack got[W];
			if (known) from = sets.locate(this->w.lane, item.token, before);
			dev::sync_warp();
			for (Wait wait;;) {
				bool ready = true;
#pragma unroll
				for (int r = 0; r < W; r++)
					if (used && from >> r & 1) got[r] = dev::load_line((const Pack*)this->lines_of(call.rank, r, i));
				if (!known && (known = this->poll_sets(sets))) {
					from = sets.locate(this->w.lane, item.token, before);
					u32 counts[W];
					sets.count(counts);
					clear_unused(counts);
					keep_hints(counts);
				}
#pragma unroll
				for (int r = 0; r < W; r++)
					if (used && from >> r & 1) ready = ready && (!this->w.flagged || flag_in(got[r]) == flag);
				if (dev::all_warp(ready && known)) break;
				if (!wait.goes_on(call, this->w.epoch())) return false;
			}
			if (i >= items) break;
#pragma unroll
			for (int r = 0; r < W; r++)
				if (from >> r & 1) store(this->place_of(r, before[r]), item.part, got[r]);
		}
		return true;
	}

	// put_counts runs on the header warp.
	MEMBER void put_counts(const TokenSets<W>& sets) const {
		const Route& call = this->call;
		u32* to = (u32*)(call.all[call.rank] + call.countsAt);
		u32 unknown = 0, counts[W];
		for (u32 i = 0; i < dev::threads() / 32; i++) unknown += this->s.unknown[i];
		sets.count(counts);
#pragma unroll
		for (int r = 0; r < W; r++)
			if (r < call.ranks && this->w.lane == r) to[r] = counts[r];
		if (this->w.lane == call.ranks) to[call.ranks] = unknown;
		keep_hints(counts);
	}
};

// line_dispatch runs a dispatch in lines. After a fault it neither sends nor receives.
template <int W>
DEVICE void line_dispatch(const Route& call) {
	DispatchLines<W> s(call);
	SomeIds ids;
	if (dev::block() == 0) ids = s.table.load(0);
	typename DispatchLines<W>::Part first = s.load_item(s.w.warp);
	if (dev::block() == 0) {
		if (s.w.sends_headers()) s.greet();
		s.table.template fill<W>(s.s, ids);
	}
	bool done = ok(s.w);
	if (s.w.sends_headers()) {
		TokenSets<W> sets;
		done = done && s.meet() && s.await_sets(sets);
		if (done) s.put_counts(sets);
	} else if (done) {
		s.send_all(first);
		done = s.recv_all();
	}
	if (!dev::all_block(done)) poison_dispatch(call);
	count(call, s.w.epoch());
}

// CombineLines returns the rows of each place to the owner of the token, which adds them up.
template <int W>
struct CombineLines : RouteLines<W> {
	MEMBER CombineLines(const Route& call) : RouteLines<W>(call) {}

	MEMBER bool uses_line(u32 chunk) const { return this->uses(this->call.rowBytes - chunk * Chunk<Pack>::Data); }
	// load_place loads an item for each peer: a chunk of a row that an expert of this rank has computed.
	MEMBER void load_place(u32 i, Pack* parts) const {
		const Route& call = this->call;
		Item item = this->item_at(i);
		if (item.token >= call.maxTokens) return;
#pragma unroll
		for (int k = 1; k < W; k++) {
			u32 r = (call.rank + k) % W;
			if (r < call.ranks) parts[k] = this->load_row(call.all[call.rank], this->place_of(r, item.token), item.part);
		}
	}
	MEMBER bool is_sent(u32 r, const u32* low, const u32* high) const { return this->is_peer(r) && low[r] < high[r]; }
	// send_range sends each rank r the rows of the places from low[r] to high[r]. parts is the warp's first
	// item. It loads the next item before it sends one.
	MEMBER void send_range(const u32* low, const u32* high, Pack* parts) const {
		const Route& call = this->call;
		u32 items = 0;
#pragma unroll
		for (int r = 0; r < W; r++)
			if (is_sent(r, low, high) && high[r] * call.chunks > items) items = high[r] * call.chunks;
#pragma unroll 1
		for (u32 i = this->w.warp; i < items; i += this->w.warps) {
			Item item = this->item_at(i);
			bool used = uses_line(item.part);
			u32 to = 0;
			Pack next[W];
			if (i + this->w.warps < items) load_place(i + this->w.warps, next);
#pragma unroll
			for (int r = 0; r < W; r++)
				if (this->is_peer(r) && item.token >= low[r] && item.token < high[r]) to |= 1u << r;
#pragma unroll
			for (int k = 1; k < W; k++) {
				u32 r = (call.rank + k) % W;
				if (to >> r & 1) this->send_item(r, i, used, parts[k]);
			}
#pragma unroll
			for (int k = 1; k < W; k++) parts[k] = next[k];
		}
	}

	MEMBER bool recv_all() const {
		const Route& call = this->call;
		TokenSets<W> sets = this->own_sets();
		u64 flag = flag_of(this->w.epoch(), call.digest);
#pragma unroll 1
		for (u32 i = this->w.warp; i < call.tokens * call.chunks; i += this->w.warps) {
			Item item = this->item_at(i);
			bool used = uses_line(item.part);
			u32 places[W], ranks = sets.locate(this->w.lane, item.token, places), from = peers(call, ranks);
			Pack got[W], mine;
#pragma unroll
			for (int r = 0; r < W; r++)
				if (r == call.rank && ranks >> r & 1) mine = this->load_row(call.all[r], this->place_of(r, places[r]), item.part);
			dev::sync_warp();
			for (Wait wait;;) {
				bool ready = true;
#pragma unroll
				for (int r = 0; r < W; r++)
					if (used && from >> r & 1)
						got[r] = dev::load_line((const Pack*)this->lines_of(call.rank, r, places[r] * call.chunks + item.part));
#pragma unroll
				for (int r = 0; r < W; r++)
					if (used && from >> r & 1) ready = ready && (!this->w.flagged || flag_in(got[r]) == flag);
				if (dev::all_warp(ready)) break;
				if (!wait.goes_on(call, this->w.epoch())) return false;
			}
			float sums[8] = {};
			bool any = false;
#pragma unroll
			for (int r = 0; r < W; r++)
				if (ranks >> r & 1) add_row(sums, any, r == call.rank ? mine : got[r]);
			this->store_row(call.own, item.token, item.part, sum_of(sums));
		}
		return true;
	}
	// poison poisons a warp's items or, on the header warp, the first chunk of each row.
	MEMBER void poison(bool header) const {
		u32 step = header ? this->call.chunks : this->w.warps;
#pragma unroll 1
		for (u32 i = header ? 0 : this->w.warp; i < this->call.tokens * this->call.chunks; i += step)
			this->store_row(this->call.own, this->item_at(i).token, this->item_at(i).part, Pack{Poison, Poison});
	}
};

// line_combine runs a combine in lines. Before it knows how many rows its peers expect, it sends them as many
// as the last dispatch received. The others follow. Rows that no rank expects are ignored. Nobody waits for
// them, so a fence completes them before the call ends: a later call of another rank may use the same lines.
// The first block computes the sets before it sends, because peers wait for them. If only the header warp
// fails, it poisons the first chunk of each row after all warps of its block have ended.
template <int W>
DEVICE void line_combine(const Route& call) {
	CombineLines<W> s(call);
	SomeIds ids = s.table.load(0);
	Pack first[W];
	s.load_place(s.w.warp, first);
	bool header = s.w.sends_headers(), done = ok(s.w), ignored = !header;
	u32 none[W] = {}, early[W];
#pragma unroll
	for (int r = 0; r < W; r++) early[r] = Hints<W>::rows(s.w.prologue.hints, call.maxTokens, r);
	if (header) s.greet();
#pragma unroll 1
	for (u32 step = 0; step < 2; step++)
		if ((step == 0) == (dev::block() == 0)) s.table.template fill<W>(s.s, ids);
		else if (done && !header) s.send_range(none, early, first);
	if (header) {
		done = done && s.meet();
	} else if (done) {
		TokenSets<W> asked;
		u32 counts[W];
		done = s.await_sets(asked);
		if (done) {
			asked.count(counts);
			bool more = false;
			ignored = false;
#pragma unroll
			for (int r = 0; r < W; r++) {
				more = more || s.is_sent(r, early, counts);
				ignored = ignored || s.is_sent(r, counts, early);
			}
			if (more) {
				s.load_place(s.w.warp, first);
				s.send_range(early, counts, first);
			}
			done = s.recv_all();
		}
	}
	if (ignored) dev::fence();
	if (!done && !header) s.poison(false);
	finish(call, s.w.epoch());
	if (!done && header) s.poison(true);
}
