// Kernels whose data carry their own flags. A rank writes lines of 128 bytes into the exchange memory
// of its peers: 120 bytes of data and the epoch of the call. Who finds the epoch has the data, so there
// is no barrier and one way over the link. Buffers may be any memory: peers never touch them.
#pragma once
#include <guard.h>
#include <number.h>
#include <word.h>

enum : u64 {
	LineBytes = 128,
	LineData = 120,
	ChunkBytes = 4 * LineBytes,  // what a warp moves at once
	ChunkData = 4 * LineData,
};

DEVICE u64 chunks_of(u64 bytes) { return (bytes + ChunkData - 1) / ChunkData; }

// Worker is what a thread knows of its place. The last warp of the grid has no data: it speaks with the
// other ranks about which call this is.
struct Worker {
	u32 lane;
	u64 warp, warps;
	bool flagged;  // this thread moves one word and the flag, else two words
	u64 epoch;
	u64 at;      // of the thread's 16 bytes in a chunk of lines
	u64 offset;  // of the thread's words in a chunk of data
};

DEVICE Worker worker(const Call& call) {
	Worker w;
	u32 warps = dev::threads() / 32, group = dev::thread() % 32 / 8, place = dev::thread() % 8;
	w.lane = dev::thread() % 32;
	w.warp = (u64)dev::block() * warps + dev::thread() / 32;
	w.warps = (u64)dev::blocks() * warps - 1;
	w.flagged = place == 7;
	w.epoch = begin(call);
	w.at = w.lane * 16;
	w.offset = group * LineData + place * 16;
	return w;
}

// speak is the work of the last warp.
DEVICE void speak(const Call& call, const Worker& w) {
	if (w.lane >= call.ranks || w.lane == call.rank) return;
	greet(call, w.lane, w.epoch);
	meet(call, w.lane, w.epoch);
}

// slot is where lines of one rank lie in the exchange memory of another.
DEVICE char* slot(const Call& call, u32 rank, const Worker& w, u64 offset) {
	return call.exchange[rank] + sizeof(Exchange) + (w.epoch & 1) * HalfBytes + offset + w.at;
}

DEVICE Pack read(const char* buffer, u64 bytes, u32 unit, const Worker& w, u64 chunk) {
	u64 at = chunk * ChunkData + w.offset;
	Pack p;
	p.a = load_word(buffer, at, bytes, unit);
	p.b = w.flagged ? w.epoch : load_word(buffer, at + 8, bytes, unit);
	return p;
}

DEVICE void write(char* buffer, u64 bytes, u32 unit, const Worker& w, u64 chunk, Pack p) {
	u64 at = chunk * ChunkData + w.offset;
	store_word(buffer, at, bytes, unit, p.a);
	if (!w.flagged) store_word(buffer, at + 8, bytes, unit, p.b);
}

// collect waits for a chunk of each rank of a set. The lines of rank r lie r * stride from the first.
// It returns false if the wait is to end.
template <int W>
DEVICE bool collect(const Call& call, const Worker& w, u32 from, const char* lines, u64 stride, Pack* got) {
	Guard guard;
	for (;;) {
		bool ready = true;
#pragma unroll
		for (int r = 0; r < W; r++)
			if (from >> r & 1) got[r] = dev::load_line((const Pack*)(lines + r * stride));
#pragma unroll
		for (int r = 0; r < W; r++)
			if (from >> r & 1) ready = ready && (!w.flagged || got[r].b == w.epoch);
		if (dev::all_warp(ready)) return true;
		if (dev::any_warp(!go_on(guard, call, w.epoch))) return false;
	}
}

// total reduces what came and this rank's own part, in the order of ranks.
template <class N, int W>
DEVICE Pack total(const Call& call, const Worker& w, Pack mine, const Pack* got) {
	Total<N> a, b;
#pragma unroll
	for (int r = 0; r < W; r++) {
		if (r >= call.ranks) break;
		Pack p = r == call.rank ? mine : got[r];
		if (r == 0) {
			first(a, p.a);
			first(b, p.b);
		} else {
			next(a, call.op, p.a);
			next(b, call.op, p.b);
		}
	}
	Pack sum;
	sum.a = result(a, call.divisor);
	sum.b = w.flagged ? w.epoch : result(b, call.divisor);
	return sum;
}

// others is a set without this rank.
DEVICE u32 others(const Call& call, u32 set) { return set & ~(1u << call.rank); }

// send_parts gives each rank of sendTo its part.
template <int W>
DEVICE void send_parts(const Call& call, const Worker& w, u64 chunk, u64 stride, Pack mine) {
	u32 align = unit((const void*)((u64)call.send | call.sendStride));
#pragma unroll
	for (int k = 1; k < W; k++) {
		u32 r = (call.rank + k) % W;
		if (!(call.sendTo >> r & 1)) continue;
		Pack p = mine;
		if (call.sendStride != 0) p = read(call.send + r * call.sendStride, call.bytes, align, w, chunk);
		dev::store_line((Pack*)(slot(call, r, w, call.rank * stride) + chunk * ChunkBytes), p);
	}
}

// line_sum is AllReduce in one step, ReduceScatter and Reduce.
template <class N, int W>
DEVICE void line_sum(const Call& call) {
	Worker w = worker(call);
	if (w.warp == w.warps) speak(call, w);
	u64 chunks = chunks_of(call.bytes), stride = chunks * ChunkBytes;
	const char* part = call.send + call.rank * call.sendStride;
	u32 from = unit(part), to = unit(call.recv);
	for (u64 chunk = w.warp; w.warp < w.warps && chunk < chunks; chunk += w.warps) {
		Pack mine = read(part, call.bytes, from, w, chunk), got[W];
		send_parts<W>(call, w, chunk, stride, mine);
		if (call.recvFrom == 0) continue;
		const char* lines = slot(call, call.rank, w, 0) + chunk * ChunkBytes;
		if (!collect<W>(call, w, others(call, call.recvFrom), lines, stride, got)) break;
		write(call.recv, call.bytes, to, w, chunk, total<N, W>(call, w, mine, got));
	}
	finish(call, w.epoch);
}

// line_copy is AllGather, Broadcast, AllToAll and Barrier.
template <int W>
DEVICE void line_copy(const Call& call) {
	Worker w = worker(call);
	if (w.warp == w.warps) speak(call, w);
	u64 chunks = chunks_of(call.bytes), stride = chunks * ChunkBytes;
	const char* part = call.send + call.rank * call.sendStride;
	u32 from = unit(part), to = unit((const void*)((u64)call.recv | call.recvStride));
	for (u64 chunk = w.warp; w.warp < w.warps && chunk < chunks; chunk += w.warps) {
		Pack mine = read(part, call.bytes, from, w, chunk), got[W];
		send_parts<W>(call, w, chunk, stride, mine);
		const char* lines = slot(call, call.rank, w, 0) + chunk * ChunkBytes;
		if (!collect<W>(call, w, others(call, call.recvFrom), lines, stride, got)) break;
#pragma unroll
		for (int r = 0; r < W; r++)
			if (call.recvFrom >> r & 1)
				write(call.recv + r * call.recvStride, call.bytes, to, w, chunk, r == call.rank ? mine : got[r]);
	}
	finish(call, w.epoch);
}

// Parts cuts a buffer into a part for each rank; the last ones may be short or empty.
struct Parts {
	u64 bytes, part;
};

DEVICE Parts parts_of(const Call& call) {
	Parts p = {call.bytes, ((call.bytes + call.ranks - 1) / call.ranks + 15) / 16 * 16};
	return p;
}

DEVICE u64 part_bytes(const Parts& p, u32 r) {
	u64 begin = r * p.part;
	return begin >= p.bytes ? 0 : p.bytes - begin < p.part ? p.bytes - begin : p.part;
}

// line_two_shot is AllReduce in two steps: each rank reduces one part and gives it to the others.
template <class N, int W>
DEVICE void line_two_shot(const Call& call) {
	Worker w = worker(call);
	if (w.warp == w.warps) speak(call, w);
	Parts parts = parts_of(call);
	u64 chunks = w.warp < w.warps ? chunks_of(parts.part) : 0, stride = chunks_of(parts.part) * ChunkBytes;
	u64 second = HalfBytes / 2;
	u32 from = unit(call.send), to = unit(call.recv), all = (1u << call.ranks) - 1;
	u64 bytes = part_bytes(parts, call.rank), begin = call.rank * parts.part;
	for (u64 chunk = w.warp; chunk < chunks; chunk += w.warps)
#pragma unroll
		for (int k = 1; k < W; k++) {
			u32 r = (call.rank + k) % W;
			if (r >= call.ranks || chunk * ChunkData >= part_bytes(parts, r)) continue;
			Pack p = read(call.send + r * parts.part, part_bytes(parts, r), from, w, chunk);
			dev::store_line((Pack*)(slot(call, r, w, call.rank * stride) + chunk * ChunkBytes), p);
		}
	bool going = true;
	for (u64 chunk = w.warp; going && chunk < chunks && chunk * ChunkData < bytes; chunk += w.warps) {
		Pack mine = read(call.send + begin, bytes, from, w, chunk), got[W];
		going = collect<W>(call, w, others(call, all), slot(call, call.rank, w, 0) + chunk * ChunkBytes, stride, got);
		if (!going) break;
		Pack sum = total<N, W>(call, w, mine, got);
#pragma unroll
		for (int k = 1; k < W; k++) {
			u32 r = (call.rank + k) % W;
			if (r < call.ranks)
				dev::store_line((Pack*)(slot(call, r, w, second + call.rank * stride) + chunk * ChunkBytes), sum);
		}
		write(call.recv + begin, bytes, to, w, chunk, sum);
	}
	for (u64 chunk = w.warp; going && chunk < chunks; chunk += w.warps) {
		u32 expected = 0;
		for (u32 r = 0; r < call.ranks; r++)
			if (r != call.rank && chunk * ChunkData < part_bytes(parts, r)) expected |= 1u << r;
		Pack got[W];
		going = collect<W>(call, w, expected, slot(call, call.rank, w, second) + chunk * ChunkBytes, stride, got);
		if (!going) break;
#pragma unroll
		for (int r = 0; r < W; r++)
			if (expected >> r & 1)
				write(call.recv + r * parts.part, part_bytes(parts, r), to, w, chunk, got[r]);
	}
	finish(call, w.epoch);
}
