// Line kernels implement collectives with NCCL's LL128 protocol. A rank writes lines of 128 bytes into
// the exchange memory of its peers. A line contains 120 bytes of data and a flag that identifies the
// call. A rank that sees the flag also sees the data. A message therefore crosses the link once and needs
// no barrier, and data of different calls cannot be confused. Buffers may be in any memory, because peers
// do not access them.
//
// A warp moves one chunk at a time, with one T per thread. T is a word for small messages, which spreads
// them over many warps, and a pack for large messages, which saves instructions. A warp reads its input
// before it writes, so the output may be the input.
#pragma once
#include <any.h>
#include <guard.h>
#include <word.h>

enum : u32 { LineBytes = 128, LineData = 120 };

// Chunk describes the unit that a warp moves at a time. The last thread of a line holds the flag. In
// lines of packs it also holds one word of data. These words come after the data of all other threads,
// which therefore stays aligned.
template <class T>
struct Chunk {
	enum : u32 {
		Bytes = 32 * sizeof(T),
		Lines = Bytes / LineBytes,
		Data = Lines * LineData,
		Threads = 32 / Lines,  // of a line
		Tail = (32 - Lines) * sizeof(T),
		Rest = sizeof(T) - 8,
	};
};

// chunks_of returns the number of chunks of a message. Messages of these kernels are below 4 GiB.
template <class T>
DEVICE u32 chunks_of(u32 bytes) {
	return (bytes + Chunk<T>::Data - 1) / Chunk<T>::Data;
}

// The first warp of the grid is the header warp. It exchanges headers with the other ranks and moves no
// data. Its block is scheduled before all other blocks. It detects calls that differ between ranks. The
// data warps of such calls wait for lines that do not arrive. Data warps are numbered from 0. The index
// must remain a single subtraction, because work before next_may_launch delays every dependent launch.
enum : u32 { HeaderWarp = ~0u };

// Worker holds the position of a thread in the grid and in its lines.
template <class T>
struct Worker {
	u32 lane;
	u32 warp, warps;  // index of the warp, and number of data warps
	bool flagged;     // this thread moves the flag of a line
	u32 at;           // offset of the thread's T in a chunk of lines
	u32 offset;       // offset of the thread's data in a chunk of data
	u32 size;         // size of that data in bytes
	Prologue prologue;

	MEMBER u64 epoch() const { return prologue.last + 1; }
	MEMBER bool sends_headers() const { return warp == HeaderWarp; }
};

// flag_of combines 40 bits of the epoch with 24 bits of the digest. At 3 us per call, the epoch bits
// repeat after 38 days, so lines of earlier calls do not match. The flag has the same position in lines
// of words and of packs.
DEVICE u64 flag_of(u64 epoch, u64 digest) { return (epoch & 0xffffffffff) | digest << 40; }

// worker starts the call. part is the address that the threads read first.
template <class T, class C>
DEVICE Worker<T> worker(const C& call, const char* part) {
	Worker<T> w;
	u32 warps = dev::threads() / 32;
	w.lane = dev::thread() % 32;
	w.warp = dev::block() * warps + dev::thread() / 32 - 1;
	w.warps = dev::blocks() * warps - 1;
	u32 line = w.lane / Chunk<T>::Threads;
	w.flagged = w.lane % Chunk<T>::Threads == Chunk<T>::Threads - 1;
	w.at = w.lane * sizeof(T);
	w.offset = w.flagged ? Chunk<T>::Tail + line * Chunk<T>::Rest : (w.lane - line) * sizeof(T);
	w.size = w.flagged ? Chunk<T>::Rest : sizeof(T);
	u32 offset = w.warp * Chunk<T>::Data + w.offset;
	// Wide kernels have no free registers for the prefetch.
	if constexpr (sizeof(T) == 8)
		if (offset < call.bytes) dev::fetch(part + offset);
	w.prologue = begin(call);
	return w;
}

// ok reports whether no earlier call has failed. It returns the same value to all threads of a warp,
// which may have read different fault words. It waits for the load in begin, so callers should load the
// input before.
template <class T>
DEVICE bool ok(const Worker<T>& w) {
	return dev::all_warp(w.prologue.ok());
}

// exchange_headers runs on the header warp. It returns false if a rank is missing or made another call.
// It also returns false if the host has stopped the kernels by the fault word of the first state. That
// word is loaded first and used last.
template <class T, class C>
DEVICE bool exchange_headers(const C& call, const Worker<T>& w) {
	if (!ok(w)) return false;  // after all threads have read the fault word
	u32 end = dev::load_relaxed(&state(call, 0)->fault);
	bool met = true;
	if (w.lane < call.ranks && w.lane != call.rank) {
		post_header(call, w.lane, w.epoch());
		met = await_header<false>(call, w.lane, w.epoch());
	}
	return dev::all_warp(met && !ended(call, end));
}

// poison_chunks poisons the output of a warp. The parts of a set of ranks are stride bytes apart. In each
// part it poisons every step-th chunk from the given one on. A chunk has data bytes.
NOINLINE void poison_chunks(char* at, u64 stride, u32 set, u32 bytes, u32 data, u32 chunk, u32 step) {
	dev::sync_warp();
	for (; set != 0; set >>= 1, at += stride) {
		if ((set & 1) == 0) continue;
#pragma unroll 1
		for (u32 begin = chunk * data; begin < bytes; begin += step * data)
#pragma unroll 1
			for (u32 i = begin + dev::thread() % 32; i < bytes && i < begin + data; i += 32) at[i] = (char)Poison;
	}
}

// slot returns the address of a rank's lines in the exchange memory of another rank.
template <class T, class C>
DEVICE char* slot(const C& call, u32 rank, const Worker<T>& w, u32 offset) {
	return call.exchange[rank] + sizeof(Exchange) + (w.epoch() & 1) * HalfBytes + offset + w.at;
}

// holds reports whether a part of this many bytes contains the chunk.
template <class T>
DEVICE bool holds(u32 bytes, u32 chunk) {
	return chunk * Chunk<T>::Data < bytes;
}

DEVICE u64 flag_in(u64 word) { return word; }
DEVICE u64 flag_in(Pack pack) { return pack.b; }

DEVICE void put_flag(u64& word, u64 flag) { word = flag; }
DEVICE void put_flag(Pack& pack, u64 flag) { pack.b = flag; }

// take and put access a thread's data if it is complete and aligned. Otherwise load_tail and store_tail
// access it.
DEVICE void take(u64& word, const char* at, bool flagged) {
	if (!flagged) word = *(const u64*)at;
}
DEVICE void take(Pack& pack, const char* at, bool flagged) {
	if (flagged) pack.a = *(const u64*)at;
	else pack = *(const Pack*)at;
}
DEVICE void load_tail(u64& word, const char* at, u32 left, u32 unit, bool flagged) {
	if (!flagged) word = load_odd(at, left, unit);
}
DEVICE void load_tail(Pack& pack, const char* at, u32 left, u32 unit, bool flagged) {
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
DEVICE void store_tail(u64 word, char* at, u32 left, u32 unit, bool flagged) {
	if (!flagged) store_odd(at, word, left, unit);
}
DEVICE void store_tail(Pack pack, char* at, u32 left, u32 unit, bool flagged) {
	store_odd(at, pack.a, left, unit);
	if (!flagged && left > 8) store_odd(at + 8, pack.b, left - 8, unit);
}

// read loads a thread's share of a chunk.
template <class T>
DEVICE T read(const char* buffer, u32 bytes, u32 unit, const Worker<T>& w, u32 chunk) {
	u32 offset = chunk * Chunk<T>::Data + w.offset;
	bool whole = unit == sizeof(T) && offset + w.size <= bytes;
	T part = {};
	if (whole) take(part, buffer + offset, w.flagged);
	else if (offset < bytes) load_tail(part, buffer + offset, bytes - offset, unit, w.flagged);
	return part;
}

// write stores a thread's share of a chunk.
template <class T>
DEVICE void write(char* buffer, u32 bytes, u32 unit, const Worker<T>& w, u32 chunk, T part) {
	u32 offset = chunk * Chunk<T>::Data + w.offset;
	if (unit == sizeof(T) && offset + w.size <= bytes) put(part, buffer + offset, w.flagged);
	else if (offset < bytes) store_tail(part, buffer + offset, bytes - offset, unit, w.flagged);
}

// send writes a chunk into the exchange memory of a rank.
template <class T, class C>
DEVICE void send(const C& call, const Worker<T>& w, u32 rank, u32 offset, u32 chunk, T part) {
	if (w.flagged) put_flag(part, flag_of(w.epoch(), call.digest));
	dev::sync_warp();
	dev::store_line((T*)(slot(call, rank, w, offset) + chunk * Chunk<T>::Bytes), part);
}

// collect waits for the chunks of a set of ranks. The lines of rank r are at lines + r * stride. It
// returns false if the wait must end.
template <class T, int W, class C>
DEVICE bool collect(const C& call, const Worker<T>& w, u32 from, const char* lines, u32 stride, T* got) {
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
		if (dev::any_warp(!keep_waiting(guard, call, w.epoch()))) return false;
	}
}

// peers removes this rank from a set of ranks.
template <class C>
DEVICE u32 peers(const C& call, u32 set) { return set & ~(1u << call.rank); }

DEVICE u64 word(u64 part, int) { return part; }
DEVICE u64 word(Pack part, int i) { return i == 0 ? part.a : part.b; }

// reduce combines the i-th words of all ranks, in the order of ranks.
template <class N, class T, int W, class C>
DEVICE u64 reduce(const C& call, T mine, const T* got, int i) {
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

template <class N, int W, class C>
DEVICE u64 total(const C& call, u64 mine, const u64* got) {
	return reduce<N, u64, W>(call, mine, got, 0);
}
template <class N, int W, class C>
DEVICE Pack total(const C& call, Pack mine, const Pack* got) {
	Pack sum;
	if constexpr (is_any<N>) {
#pragma unroll 1
		for (int i = 0; i < 2; i++) (i == 0 ? sum.a : sum.b) = reduce<N, Pack, W>(call, mine, got, i);
	} else {
		sum = {reduce<N, Pack, W>(call, mine, got, 0), reduce<N, Pack, W>(call, mine, got, 1)};
	}
	return sum;
}

// send_same sends the same chunk to each rank of sendTo. bytes is the size of the part.
template <class T, int W>
DEVICE void send_same(const Call& call, const Worker<T>& w, u32 bytes, u32 chunk, u32 offset, T part) {
#pragma unroll
	for (int k = 1; k < W; k++) {
		u32 r = (call.rank + k) % W;
		if (holds<T>(bytes, chunk) && call.sendTo >> r & 1) send(call, w, r, offset, chunk, part);
	}
}

// part_bytes returns the size of a rank's part in a two-shot call. The last parts may be short or empty.
DEVICE u32 part_bytes(const Call& call, u32 r) {
	u32 part = (u32)call.sendStride, begin = r * part, bytes = (u32)call.bytes;
	return begin >= bytes ? 0 : bytes - begin < part ? bytes - begin : part;
}

// send_parts sends each rank of sendTo a chunk of its part. The size of the part is bytes or, with
// TwoSteps, part_bytes. All parts are loaded before the first store, because the GPU does not move loads
// before stores. With Ask nothing is sent after a fault.
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
	if (Ask && !ok(w)) return;
#pragma unroll
	for (int k = 1; k < W; k++)
		if (holds<T>(has[k], chunk)) send(call, w, (call.rank + k) % W, call.rank * stride, chunk, parts[k]);
}

// Steps handles the chunks of a warp in a one-shot call. It sends data of this rank, and then receives
// data of its peers.
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

	// start loads this rank's part if it is needed, and sends each rank its data. With Ask it sends nothing
	// after a fault. The fault word arrives no earlier than the input, so it is checked after the load of the
	// input is issued.
	template <bool Ask>
	MEMBER T start(u32 chunk, bool needed) const {
		T mine = read(part, needed ? bytes : 0, align, w, chunk);
		if (call.sendStride != 0) send_parts<T, W, false, Ask>(call, w, bytes, chunk, stride);
		else if (!Ask || ok(w)) send_same<T, W>(call, w, bytes, chunk, call.rank * stride, mine);
		return mine;
	}

	// await returns false if the wait must end.
	MEMBER bool await(u32 chunk, T* got) const {
		const char* lines = slot(call, call.rank, w, 0) + chunk * Chunk<T>::Bytes;
		return collect<T, W>(call, w, peers(call, call.recvFrom), lines, stride, got);
	}
};

// SumSteps implements one-shot AllReduce, ReduceScatter and Reduce.
template <class N, class T, int W>
struct SumSteps : Steps<T, W> {
	u32 to;

	MEMBER SumSteps(const Call& call) : Steps<T, W>(call), to(unit<T>(call.recv)) {}

	template <bool Ask>
	MEMBER T send(u32 chunk) const {
		return this->template start<Ask>(chunk, true);
	}
	MEMBER bool recv(u32 chunk, T mine) const {
		const Call& call = this->call;
		T got[W];
		if (call.recvFrom == 0) return true;
		if (!this->await(chunk, got)) return false;
		write(call.recv, this->bytes, to, this->w, chunk, total<N, W>(call, mine, got));
		return true;
	}
	MEMBER void poison(u32 chunk, u32 step, u32 most) const {
		poison_chunks(this->call.recv, 0, this->call.recvFrom != 0, most, Chunk<T>::Data, chunk, step);
	}
};

// CopySteps implements AllGather, Broadcast, AllToAll and Barrier.
template <class T, int W>
struct CopySteps : Steps<T, W> {
	u32 to;
	bool needed;

	MEMBER CopySteps(const Call& call) : Steps<T, W>(call) {
		to = unit<T>((const void*)((u64)call.recv | call.recvStride));
		needed = (call.sendTo | (call.recvFrom >> call.rank & 1)) != 0;
	}

	template <bool Ask>
	MEMBER T send(u32 chunk) const {
		return this->template start<Ask>(chunk, needed);
	}
	MEMBER bool recv(u32 chunk, T mine) const {
		const Call& call = this->call;
		T got[W];
		if (!this->await(chunk, got)) return false;
#pragma unroll
		for (int r = 0; r < W; r++)
			if (call.recvFrom >> r & 1)
				write(call.recv + r * call.recvStride, this->bytes, to, this->w, chunk, r == call.rank ? mine : got[r]);
		return true;
	}
	MEMBER void poison(u32 chunk, u32 step, u32 most) const {
		const Call& call = this->call;
		poison_chunks(call.recv, call.recvStride, call.recvFrom, most, Chunk<T>::Data, chunk, step);
	}
};

// end completes the call. A data warp that failed poisons all of its output. All data may have arrived
// although the header warp failed. The header warp therefore poisons the first elements of each part,
// after the warp of its block that writes them.
template <class S, class C>
DEVICE void end(const C& call, const S& s, bool done) {
	bool sends_headers = s.w.sends_headers(), ok = dev::all_warp(done && s.w.prologue.ok());
	if (!ok && !sends_headers) s.poison(s.w.warp, s.w.warps, s.bytes);
	finish(call, s.w.epoch());
	if (!ok && sends_headers) s.poison(0, 1, s.bytes < 8 ? s.bytes : 8);
}

// line runs a call with at most one chunk per warp. It has no loop, because each launch must fetch the
// code again. After a fault it neither sends nor receives.
template <class S, class C>
DEVICE void line(const C& call) {
	S s(call);
	u32 chunk = s.w.warp;
	bool done = true;
	if (s.w.sends_headers()) {
		done = exchange_headers(call, s.w);
	} else if (s.has(chunk)) {
		typename S::Part mine = s.template send<true>(chunk);
		done = ok(s.w) && s.recv(chunk, mine);
	}
	end(call, s, done);
}

// unrolled runs a call with at most two chunks per warp, which are w.warps apart. It sends both before it
// waits.
template <class S, class C>
DEVICE void unrolled(const C& call) {
	S s(call);
	u32 chunk = s.w.warp, after = chunk + s.w.warps;
	bool done = true;
	if (s.w.sends_headers()) {
		done = exchange_headers(call, s.w);
	} else if (s.has(chunk)) {
		bool two = s.has(after);
		typename S::Part mine = s.template send<true>(chunk), next;
		done = ok(s.w);
		if (two && done) next = s.template send<false>(after);
		done = done && s.recv(chunk, mine);
		if (two && done) done = s.recv(after, next);
	}
	end(call, s, done);
}

// wide runs a call with more chunks than warps. The chunks of a warp are w.warps apart. To keep the link
// busy, a warp sends a chunk before it waits for the previous one.
template <class S, class C>
DEVICE void wide(const C& call) {
	S s(call);
	u32 chunk = s.w.warp;
	bool done = true;
	if (s.w.sends_headers()) {
		done = exchange_headers(call, s.w);
	} else if (s.has(chunk)) {
		typename S::Part mine = s.template send<true>(chunk), next;
		done = ok(s.w);
		while (done) {
			u32 after = chunk + s.w.warps;
			bool more = s.has(after);
			if (more) next = s.template send<false>(after);
			done = s.recv(chunk, mine);
			if (!more) break;
			mine = next;
			chunk = after;
		}
	}
	end(call, s, done);
}

// share runs the second step of a two-shot call. Each rank reduces its part and sends it to its peers.
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

// gather runs the last step of a two-shot call. Each rank receives the parts of its peers.
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

// TwoShot poisons the output of a warp in a two-shot call.
template <class T>
struct TwoShot {
	const Call& call;
	Worker<T> w;
	u32 bytes;

	MEMBER void poison(u32 chunk, u32 step, u32 most) const {
		u32 part = (u32)call.sendStride;
		for (u32 r = 0, first = 0; r < call.ranks && first < most; r++, first += part)
			poison_chunks(call.recv + first, 0, 1, most - first < part ? most - first : part, Chunk<T>::Data, chunk, step);
	}
};

// line_two_shot implements two-shot AllReduce. A part has sendStride bytes, a multiple of sizeof(T). In
// the first step each rank sends its input of every part to the rank that reduces it. A warp has the same
// chunks in all steps. The chunks of all warps are interleaved.
template <class N, class T, int W>
DEVICE void line_two_shot(const Call& call) {
	Worker<T> w = worker<T>(call, call.send);
	u32 chunks = chunks_of<T>((u32)call.sendStride), stride = chunks * Chunk<T>::Bytes, second = HalfBytes / 2;
	bool done;
	if (w.sends_headers()) {
		done = exchange_headers(call, w);
	} else {
		for (u32 chunk = w.warp; chunk < chunks; chunk += w.warps) send_parts<T, W, true, true>(call, w, 0, chunk, stride);
		done = ok(w) && share<N, T, W>(call, w, stride, second) && gather<T, W>(call, w, chunks, stride, second);
	}
	end(call, TwoShot<T>{call, w, (u32)call.bytes}, done);
}
