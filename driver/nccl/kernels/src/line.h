// Kernels whose data carry their own flags. A rank writes lines of 128 bytes into the exchange memory of
// its peers: 120 bytes of data and a flag, which stands for the call. A rank that sees the flag has the
// data, so a message crosses the link once and needs no barrier; and data of another call are never taken.
// Buffers may be any memory: peers never touch them.
//
// A warp moves a chunk at once, a T a thread: words, so that small messages have many warps, or packs, so
// that large ones take few instructions. It reads before it writes, so the output may be the input.
#pragma once
#include <any.h>
#include <guard.h>
#include <word.h>

enum : u32 { LineBytes = 128, LineData = 120 };

// Chunk is what a warp moves at once. The last thread of a line has the flag, and of packs a word of data,
// which lies behind those of the others: so all of them are aligned.
template <class T>
struct Chunk {
	enum : u32 {
		Bytes = 32 * sizeof(T),
		Lines = Bytes / LineBytes,
		Data = Lines * LineData,
		Threads = 32 / Lines,  // of a line
		Behind = (32 - Lines) * sizeof(T),
		Rest = sizeof(T) - 8,
	};
};

// The sizes of messages of these kernels fit in 32 bits.
template <class T>
DEVICE u32 chunks_of(u32 bytes) {
	return (bytes + Chunk<T>::Data - 1) / Chunk<T>::Data;
}

// The first warp of the grid has no data: it exchanges headers with the other ranks. Its block has room
// before any other one, and blocks that wait for lines of another call do not end before it has told the
// calls apart. The others are numbered from 0. Nothing but a subtraction comes of it: what a kernel does
// before it lets the next one start is time of every call.
enum : u32 { Speaker = ~0u };

// Worker is what a thread knows of its place.
template <class T>
struct Worker {
	u32 lane;
	u32 warp, warps;  // its number, and how many have data
	bool flagged;  // this thread moves the flag of a line
	u32 at;        // of the thread's T in a chunk of lines
	u32 offset;    // of the thread's data in a chunk of data
	u32 size;      // of them, in bytes
	Begun begun;

	MEMBER u64 epoch() const { return begun.last + 1; }
	MEMBER bool speaks() const { return warp == Speaker; }
};

// flag_of tells calls apart by 40 bits of the epoch and 24 of the digest. A line with the same flag from an
// earlier call was overwritten long ago, or is 38 days old at 3 us a call. Flags of words and of packs have
// the same places in lines.
DEVICE u64 flag_of(u64 epoch, u64 digest) { return (epoch & 0xffffffffff) | digest << 40; }

// worker begins the call. A part is what the threads read first.
template <class T>
DEVICE Worker<T> worker(const Call& call, const char* part) {
	typedef Chunk<T> C;
	Worker<T> w;
	u32 warps = dev::threads() / 32;
	w.lane = dev::thread() % 32;
	w.warp = dev::block() * warps + dev::thread() / 32 - 1;
	w.warps = dev::blocks() * warps - 1;
	u32 line = w.lane / C::Threads;
	w.flagged = w.lane % C::Threads == C::Threads - 1;
	w.at = w.lane * sizeof(T);
	w.offset = w.flagged ? C::Behind + line * C::Rest : (w.lane - line) * sizeof(T);
	w.size = w.flagged ? C::Rest : sizeof(T);
	u32 offset = w.warp * C::Data + w.offset;
	// Wide kernels have no registers left for it.
	if (sizeof(T) == 8 && offset < call.bytes) dev::fetch(part + offset);
	w.begun = begin(call);
	return w;
}

// well reports whether no earlier call has failed, alike for all threads of a warp, which may have read
// different values. It waits for what begin loads, so input is loaded first.
template <class T>
DEVICE bool well(const Worker<T>& w) {
	return dev::all_warp(w.begun.well());
}

// speak is the work of the warp without data: it returns false if a rank does not come, or to another call,
// or if the host has ended the kernels, which it writes to the first state. That load is issued first and
// used last.
template <class T>
DEVICE bool speak(const Call& call, const Worker<T>& w) {
	if (!well(w)) return false;  // all have begun before one of them may set the fault
	u32 end = dev::load_relaxed(&state(call, 0)->fault);
	bool met = true;
	if (w.lane < call.ranks && w.lane != call.rank) {
		greet(call, w.lane, w.epoch());
		met = meet<false>(call, w.lane, w.epoch());
	}
	return dev::all_warp(met && !ended(call, end));
}

// mark writes marks to what a warp was to write itself: the parts of a set of ranks, stride bytes apart,
// and in each the chunks of data bytes from the given one on, step chunks apart.
NOINLINE void mark(char* at, u64 stride, u32 set, u32 bytes, u32 data, u32 chunk, u32 step) {
	dev::sync_warp();
	for (; set != 0; set >>= 1, at += stride) {
		if ((set & 1) == 0) continue;
#pragma unroll 1
		for (u32 begin = chunk * data; begin < bytes; begin += step * data)
#pragma unroll 1
			for (u32 i = begin + dev::thread() % 32; i < bytes && i < begin + data; i += 32) at[i] = (char)Mark;
	}
}

// slot is where lines of one rank lie in the exchange memory of another.
template <class T>
DEVICE char* slot(const Call& call, u32 rank, const Worker<T>& w, u32 offset) {
	return call.exchange[rank] + sizeof(Exchange) + (w.epoch() & 1) * HalfBytes + offset + w.at;
}

// holds reports whether so many bytes have a chunk.
template <class T>
DEVICE bool holds(u32 bytes, u32 chunk) {
	return chunk * Chunk<T>::Data < bytes;
}

DEVICE u64 flag_in(u64 word) { return word; }
DEVICE u64 flag_in(Pack pack) { return pack.b; }

DEVICE void put_flag(u64& word, u64 flag) { word = flag; }
DEVICE void put_flag(Pack& pack, u64 flag) { pack.b = flag; }

// take and put move the data of a thread that lie whole and aligned, take_odd and put_odd those that need
// not, or of which only some are there.
DEVICE void take(u64& word, const char* at, bool flagged) {
	if (!flagged) word = *(const u64*)at;
}
DEVICE void take(Pack& pack, const char* at, bool flagged) {
	if (flagged) pack.a = *(const u64*)at;
	else pack = *(const Pack*)at;
}
DEVICE void take_odd(u64& word, const char* at, u32 left, u32 unit, bool flagged) {
	if (!flagged) word = load_odd(at, left, unit);
}
DEVICE void take_odd(Pack& pack, const char* at, u32 left, u32 unit, bool flagged) {
	pack.a = load_odd(at, left, unit);
	if (!flagged && left > 8) pack.b = load_odd(at + 8, left - 8, unit);
}
DEVICE void put(u64 word, char* at, bool flagged) {
	if (!flagged) *(u64*)at = word;
}
DEVICE void put(Pack pack, char* at, bool flagged) {
	if (flagged) *(u64*)at = pack.a;
	else *(Pack*)at = pack;
}
DEVICE void put_odd(u64 word, char* at, u32 left, u32 unit, bool flagged) {
	if (!flagged) store_odd(at, word, left, unit);
}
DEVICE void put_odd(Pack pack, char* at, u32 left, u32 unit, bool flagged) {
	store_odd(at, pack.a, left, unit);
	if (!flagged && left > 8) store_odd(at + 8, pack.b, left - 8, unit);
}

// read fetches a thread's part of a chunk.
template <class T>
DEVICE T read(const char* buffer, u32 bytes, u32 unit, const Worker<T>& w, u32 chunk) {
	u32 offset = chunk * Chunk<T>::Data + w.offset;
	bool whole = unit == sizeof(T) && offset + w.size <= bytes;
	T part = {};
	if (whole) take(part, buffer + offset, w.flagged);
	else if (offset < bytes) take_odd(part, buffer + offset, bytes - offset, unit, w.flagged);
	return part;
}

template <class T>
DEVICE void write(char* buffer, u32 bytes, u32 unit, const Worker<T>& w, u32 chunk, T part) {
	u32 offset = chunk * Chunk<T>::Data + w.offset;
	if (unit == sizeof(T) && offset + w.size <= bytes) put(part, buffer + offset, w.flagged);
	else if (offset < bytes) put_odd(part, buffer + offset, bytes - offset, unit, w.flagged);
}

// give puts a chunk into the exchange memory of a rank.
template <class T>
DEVICE void give(const Call& call, const Worker<T>& w, u32 rank, u32 offset, u32 chunk, T part) {
	if (w.flagged) put_flag(part, flag_of(w.epoch(), call.digest));
	dev::sync_warp();
	dev::store_line((T*)(slot(call, rank, w, offset) + chunk * Chunk<T>::Bytes), part);
}

// collect waits for the chunks of a set of ranks. The lines of rank r lie r * stride from the first. It
// returns false if the wait is to end.
template <class T, int W>
DEVICE bool collect(const Call& call, const Worker<T>& w, u32 from, const char* lines, u32 stride, T* got) {
	u64 flag = flag_of(w.epoch(), call.digest);
	dev::sync_warp();
	for (Guard guard;;) {
#pragma unroll
		for (int r = 0; r < W; r++)
			if (from >> r & 1) got[r] = dev::load_line((const T*)(lines + r * stride));
		bool ready = true;
#pragma unroll
		for (int r = 0; r < W; r++)
			if (from >> r & 1) ready = ready && (!w.flagged || flag_in(got[r]) == flag);
		if (dev::all_warp(ready)) return true;
		if (dev::any_warp(!go_on(guard, call, w.epoch()))) return false;
	}
}

// peers is a set of ranks without this one.
DEVICE u32 peers(const Call& call, u32 set) { return set & ~(1u << call.rank); }

DEVICE u64 word(u64 part, int) { return part; }
DEVICE u64 word(Pack part, int i) { return i == 0 ? part.a : part.b; }

// reduce makes the i-th word of what came and this rank's own, in the order of ranks.
template <class N, class T, int W>
DEVICE u64 reduce(const Call& call, T mine, const T* got, int i) {
	if constexpr (is_any<N>) {
		u64 words[W];
#pragma unroll
		for (int r = 0; r < W; r++)
			if (r < call.ranks) words[r] = word(r == call.rank ? mine : got[r], i);
		return combined_any<W>(call, words);
	} else {
		Total<N> t;
#pragma unroll
		for (int r = 0; r < W; r++) {
			if (r >= call.ranks) break;
			u64 one = word(r == call.rank ? mine : got[r], i);
			if (r == 0) first(t, one);
			else next(t, call.op, one);
		}
		if constexpr (overflows<N>) {
			if (call.divisor != 1 && !finite(t)) {
				Words<W> words;
#pragma unroll
				for (int r = 0; r < W; r++) words.of[r] = word(r == call.rank ? mine : got[r], i);
				return average_again<N, W>(words, call.ranks);
			}
		}
		return result<N, W>(t, call.divisor);
	}
}

template <class N, int W>
DEVICE u64 total(const Call& call, u64 mine, const u64* got) {
	return reduce<N, u64, W>(call, mine, got, 0);
}
template <class N, int W>
DEVICE Pack total(const Call& call, Pack mine, const Pack* got) {
	Pack sum;
	if constexpr (is_any<N>) {
#pragma unroll 1
		for (int i = 0; i < 2; i++) (i == 0 ? sum.a : sum.b) = reduce<N, Pack, W>(call, mine, got, i);
	} else {
		sum = {reduce<N, Pack, W>(call, mine, got, 0), reduce<N, Pack, W>(call, mine, got, 1)};
	}
	return sum;
}

// send_same gives each rank of sendTo a chunk of so many bytes.
template <class T, int W>
DEVICE void send_same(const Call& call, const Worker<T>& w, u32 bytes, u32 chunk, u32 offset, T part) {
#pragma unroll
	for (int k = 1; k < W; k++) {
		u32 r = (call.rank + k) % W;
		if (holds<T>(bytes, chunk) && call.sendTo >> r & 1) give(call, w, r, offset, chunk, part);
	}
}

// part_bytes is the size of the part of a rank in two steps; the last ones may be short or empty.
DEVICE u32 part_bytes(const Call& call, u32 r) {
	u32 part = (u32)call.sendStride, begin = r * part, bytes = (u32)call.bytes;
	return begin >= bytes ? 0 : bytes - begin < part ? bytes - begin : part;
}

// send_parts gives each rank of sendTo a chunk of its part, which has so many bytes, or what it has in two
// steps. All are read before the first is stored, since no load overtakes a store. With Ask it sends
// nothing after a fault.
template <class T, int W, bool TwoSteps, bool Ask>
DEVICE void send_parts(const Call& call, const Worker<T>& w, u32 bytes, u32 chunk, u32 stride) {
	u32 align = unit<T>((const void*)((u64)call.send | call.sendStride)), has[W];
	T parts[W];
#pragma unroll
	for (int k = 1; k < W; k++) {
		u32 r = (call.rank + k) % W;
		has[k] = !(call.sendTo >> r & 1) ? 0 : TwoSteps ? part_bytes(call, r) : bytes;
		parts[k] = read(call.send + r * call.sendStride, has[k], align, w, chunk);
	}
	if (Ask && !well(w)) return;
#pragma unroll
	for (int k = 1; k < W; k++)
		if (holds<T>(has[k], chunk)) give(call, w, (call.rank + k) % W, call.rank * stride, chunk, parts[k]);
}

// Steps are what a warp does with a chunk in a call of one step: it gives its part away, then takes
// those of others.
template <class T, int W>
struct Steps {
	typedef T Part;
	const Call& call;
	const char* part;
	Worker<T> w;
	u32 bytes, stride, align;

	MEMBER Steps(const Call& call) : call(call), part(call.send + call.rank * call.sendStride), w(worker<T>(call, part)) {
		bytes = (u32)call.bytes;
		stride = chunks_of<T>(bytes) * Chunk<T>::Bytes;
		align = unit<T>(part);
	}

	MEMBER bool has(u32 chunk) const { return holds<T>(bytes, chunk); }

	// start fetches this rank's own part, if it is needed, and gives each rank what it needs. After a fault it
	// gives nothing. Whether there is one is known no sooner than the input, so it asks after that is on its way.
	template <bool Ask>
	MEMBER T start(u32 chunk, bool needed) const {
		T mine = read(part, needed ? bytes : 0, align, w, chunk);
		if (call.sendStride != 0) send_parts<T, W, false, Ask>(call, w, bytes, chunk, stride);
		else if (!Ask || well(w)) send_same<T, W>(call, w, bytes, chunk, call.rank * stride, mine);
		return mine;
	}

	// await returns false if the wait is to end.
	MEMBER bool await(u32 chunk, T* got) const {
		const char* lines = slot(call, call.rank, w, 0) + chunk * Chunk<T>::Bytes;
		return collect<T, W>(call, w, peers(call, call.recvFrom), lines, stride, got);
	}
};

// SumSteps are those of AllReduce in one step, ReduceScatter and Reduce.
template <class N, class T, int W>
struct SumSteps : Steps<T, W> {
	u32 to;

	MEMBER SumSteps(const Call& call) : Steps<T, W>(call), to(unit<T>(call.recv)) {}

	template <bool Ask>
	MEMBER T give(u32 chunk) const {
		return this->template start<Ask>(chunk, true);
	}
	MEMBER bool take(u32 chunk, T mine) const {
		const Call& call = this->call;
		T got[W];
		if (call.recvFrom == 0) return true;
		if (!this->await(chunk, got)) return false;
		write(call.recv, this->bytes, to, this->w, chunk, total<N, W>(call, mine, got));
		return true;
	}
	MEMBER void spoil(u32 chunk, u32 step, u32 most) const {
		mark(this->call.recv, 0, this->call.recvFrom != 0, most, Chunk<T>::Data, chunk, step);
	}
};

// CopySteps are those of AllGather, Broadcast, AllToAll and Barrier.
template <class T, int W>
struct CopySteps : Steps<T, W> {
	u32 to;
	bool needed;

	MEMBER CopySteps(const Call& call) : Steps<T, W>(call) {
		to = unit<T>((const void*)((u64)call.recv | call.recvStride));
		needed = (call.sendTo | (call.recvFrom >> call.rank & 1)) != 0;
	}

	template <bool Ask>
	MEMBER T give(u32 chunk) const {
		return this->template start<Ask>(chunk, needed);
	}
	MEMBER bool take(u32 chunk, T mine) const {
		const Call& call = this->call;
		T got[W];
		if (!this->await(chunk, got)) return false;
#pragma unroll
		for (int r = 0; r < W; r++)
			if (call.recvFrom >> r & 1)
				write(call.recv + r * call.recvStride, this->bytes, to, this->w, chunk, r == call.rank ? mine : got[r]);
		return true;
	}
	MEMBER void spoil(u32 chunk, u32 step, u32 most) const {
		const Call& call = this->call;
		mark(call.recv, call.recvStride, call.recvFrom, most, Chunk<T>::Data, chunk, step);
	}
};

// end counts the call. A warp for which it did not go well leaves marks in place of all that it was to
// write. The warp without data writes none, so if it fails all data may be there: then it marks the first
// number of each part, after the warp of its block that writes it.
template <class S>
DEVICE void end(const Call& call, const S& s, bool done) {
	bool speaks = s.w.speaks(), well = dev::all_warp(done && s.w.begun.well());
	if (!well && !speaks) s.spoil(s.w.warp, s.w.warps, s.bytes);
	finish(call, s.w.epoch());
	if (!well && speaks) s.spoil(0, 1, s.bytes < 8 ? s.bytes : 8);
}

// line is a call whose warps have a chunk each. There is no loop, since code is fetched anew in every
// launch. After a fault nothing is given and nothing taken.
template <class S>
DEVICE void line(const Call& call) {
	S s(call);
	u32 chunk = s.w.warp;
	bool done = true;
	if (s.w.speaks()) {
		done = speak(call, s.w);
	} else if (s.has(chunk)) {
		typename S::Part mine = s.template give<true>(chunk);
		done = well(s.w) && s.take(chunk, mine);
	}
	end(call, s, done);
}

// twin is a call with up to two chunks for each warp, w.warps apart. It gives both before it waits.
template <class S>
DEVICE void twin(const Call& call) {
	S s(call);
	u32 chunk = s.w.warp, behind = chunk + s.w.warps;
	bool done = true;
	if (s.w.speaks()) {
		done = speak(call, s.w);
	} else if (s.has(chunk)) {
		bool two = s.has(behind);
		typename S::Part mine = s.template give<true>(chunk), next;
		done = well(s.w);
		if (two && done) next = s.template give<false>(behind);
		done = done && s.take(chunk, mine);
		if (two && done) done = s.take(behind, next);
	}
	end(call, s, done);
}

// wide is a call with more chunks than warps: those of a warp are w.warps apart. A warp gives a chunk
// before it waits for the one before, so that the link is not idle meanwhile.
template <class S>
DEVICE void wide(const Call& call) {
	S s(call);
	u32 chunk = s.w.warp;
	bool done = true;
	if (s.w.speaks()) {
		done = speak(call, s.w);
	} else if (s.has(chunk)) {
		typename S::Part mine = s.template give<true>(chunk), next;
		done = well(s.w);
		while (done) {
			u32 behind = chunk + s.w.warps;
			bool more = s.has(behind);
			if (more) next = s.template give<false>(behind);
			done = s.take(chunk, mine);
			if (!more) break;
			mine = next;
			chunk = behind;
		}
	}
	end(call, s, done);
}

// share is the second of two steps: each rank reduces its part and gives it to the others.
template <class N, class T, int W>
DEVICE bool share(const Call& call, const Worker<T>& w, u32 stride, u32 second) {
	u32 bytes = part_bytes(call, call.rank), begin = call.rank * (u32)call.sendStride;
	u32 align = unit<T>(call.send), to = unit<T>(call.recv);
	for (u32 chunk = w.warp; holds<T>(bytes, chunk); chunk += w.warps) {
		T got[W], part = read(call.send + begin, bytes, align, w, chunk);
		const char* lines = slot(call, call.rank, w, 0) + chunk * Chunk<T>::Bytes;
		if (!collect<T, W>(call, w, peers(call, call.recvFrom), lines, stride, got)) return false;
		part = total<N, W>(call, part, got);
		send_same<T, W>(call, w, bytes, chunk, second + call.rank * stride, part);
		write(call.recv + begin, bytes, to, w, chunk, part);
	}
	return true;
}

// gather is the last step: each rank takes the parts of the others.
template <class T, int W>
DEVICE bool gather(const Call& call, const Worker<T>& w, u32 chunks, u32 stride, u32 second) {
	u32 to = unit<T>(call.recv), part = (u32)call.sendStride;
	for (u32 chunk = w.warp; chunk < chunks; chunk += w.warps) {
		u32 from = 0;
		T got[W];
#pragma unroll
		for (int r = 0; r < W; r++)
			if (r != call.rank && r < call.ranks && holds<T>(part_bytes(call, r), chunk)) from |= 1u << r;
		const char* lines = slot(call, call.rank, w, second) + chunk * Chunk<T>::Bytes;
		if (!collect<T, W>(call, w, from, lines, stride, got)) return false;
#pragma unroll
		for (int r = 0; r < W; r++)
			if (from >> r & 1) write(call.recv + r * part, part_bytes(call, r), to, w, chunk, got[r]);
	}
	return true;
}

// TwoShot says how a warp marks what it has in a call of two steps.
template <class T>
struct TwoShot {
	const Call& call;
	Worker<T> w;
	u32 bytes;

	MEMBER void spoil(u32 chunk, u32 step, u32 most) const {
		u32 part = (u32)call.sendStride;
		for (u32 r = 0, first = 0; r < call.ranks && first < most; r++, first += part)
			mark(call.recv + first, 0, 1, most - first < part ? most - first : part, Chunk<T>::Data, chunk, step);
	}
};

// line_two_shot is AllReduce in two steps, over parts of sendStride bytes, a multiple of those of a T.
// In the first each rank gets the others' inputs of its part. A warp has the same chunks in all steps; the
// steps of other warps are between.
template <class N, class T, int W>
DEVICE void line_two_shot(const Call& call) {
	Worker<T> w = worker<T>(call, call.send);
	u32 chunks = chunks_of<T>((u32)call.sendStride), stride = chunks * Chunk<T>::Bytes, second = HalfBytes / 2;
	bool done;
	if (w.speaks()) {
		done = speak(call, w);
	} else {
		for (u32 chunk = w.warp; chunk < chunks; chunk += w.warps) send_parts<T, W, true, true>(call, w, 0, chunk, stride);
		done = well(w) && share<N, T, W>(call, w, stride, second) && gather<T, W>(call, w, chunks, stride, second);
	}
	end(call, TwoShot<T>{call, w, (u32)call.bytes}, done);
}
