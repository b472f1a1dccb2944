// Kernels whose data carry their own flags. A rank writes lines of 128 bytes into the exchange memory
// of its peers: 120 bytes of data and a flag, which stands for the call. Who finds the flag has the data,
// so there is no barrier and one way over the link; and data of another call are never taken. Buffers may
// be any memory: peers never touch them.
#pragma once
#include <guard.h>
#include <number.h>
#include <word.h>

enum : u32 {
	LineData = 120,
	ChunkBytes = 256,  // two lines: what a warp moves at once
	ChunkData = 2 * LineData,
};

// The sizes of messages of these kernels fit in 32 bits.
DEVICE u32 chunks_of(u32 bytes) { return (bytes + ChunkData - 1) / ChunkData; }

// Worker is what a thread knows of its place. The last warp of the grid has no data: it speaks with the
// other ranks about which call this is.
struct Worker {
	u32 lane;
	u32 warp, warps;
	bool flagged;  // this thread moves the flag of a line, else a word
	u32 at;        // of the thread's 8 bytes in a chunk of lines
	u32 offset;    // of the thread's word in a chunk of data
	u64 epoch;
	u64 flag;
};

// flag_of tells calls apart by 40 bits of the epoch and 24 of the digest. What an earlier call of the same
// flag has left was overwritten long ago, or is 38 days old at 3 us a call.
DEVICE u64 flag_of(u64 epoch, u64 digest) { return (epoch & 0xffffffffff) | digest << 40; }

DEVICE Worker worker(const Call& call) {
	Worker w;
	u32 warps = dev::threads() / 32;
	w.epoch = begin(call);
	w.flag = flag_of(w.epoch, call.digest);
	w.lane = dev::thread() % 32;
	w.warp = dev::block() * warps + dev::thread() / 32;
	w.warps = dev::blocks() * warps - 1;
	w.flagged = w.lane % 16 == 15;
	w.at = w.lane * 8;
	w.offset = (w.lane - w.lane / 16) * 8;
	return w;
}

// speak is the work of the last warp.
DEVICE void speak(const Call& call, const Worker& w) {
	if (w.lane >= call.ranks || w.lane == call.rank) return;
	greet(call, w.lane, w.epoch);
	meet<false>(call, w.lane, w.epoch);
}

// slot is where lines of one rank lie in the exchange memory of another.
DEVICE char* slot(const Call& call, u32 rank, const Worker& w, u32 offset) {
	return call.exchange[rank] + sizeof(Exchange) + (w.epoch & 1) * HalfBytes + offset + w.at;
}

// read waits for the flag after it has asked for the data.
DEVICE u64 read(const char* buffer, u32 bytes, u32 unit, const Worker& w, u32 chunk) {
	u64 word = load_word(buffer, chunk * ChunkData + w.offset, w.flagged ? 0 : bytes, unit);
	return w.flagged ? w.flag : word;
}

DEVICE void write(char* buffer, u32 bytes, u32 unit, const Worker& w, u32 chunk, u64 word) {
	if (!w.flagged) store_word(buffer, chunk * ChunkData + w.offset, bytes, unit, word);
}

// collect waits for a chunk of each rank of a set. The lines of rank r lie r * stride from the first.
// It returns false if the wait is to end.
template <int W>
DEVICE bool collect(const Call& call, const Worker& w, u32 from, const char* lines, u32 stride, u64* got) {
	Guard guard;
	for (;;) {
		bool ready = true;
#pragma unroll
		for (int r = 0; r < W; r++)
			if (from >> r & 1) got[r] = dev::load_line((const u64*)(lines + r * stride));
#pragma unroll
		for (int r = 0; r < W; r++)
			if (from >> r & 1) ready = ready && (!w.flagged || got[r] == w.flag);
		if (dev::all_warp(ready)) return true;
		if (dev::any_warp(!go_on(guard, call, w.epoch))) return false;
	}
}

// total reduces what came and this rank's own word, in the order of ranks.
template <class N, int W>
DEVICE u64 total(const Call& call, const Worker& w, u64 mine, const u64* got) {
	Total<N> t;
#pragma unroll
	for (int r = 0; r < W; r++) {
		if (r >= call.ranks) break;
		u64 word = r == call.rank ? mine : got[r];
		if (r == 0) first(t, word);
		else next(t, call.op, word);
	}
	return w.flagged ? w.flag : result(t, call.divisor);
}

// others is a set without this rank.
DEVICE u32 others(const Call& call, u32 set) { return set & ~(1u << call.rank); }

// send_parts gives each rank of sendTo its part.
template <int W>
DEVICE void send_parts(const Call& call, const Worker& w, u32 chunk, u32 stride, u64 mine) {
	u32 align = unit((const void*)((u64)call.send | call.sendStride));
#pragma unroll
	for (int k = 1; k < W; k++) {
		u32 r = (call.rank + k) % W;
		if (!(call.sendTo >> r & 1)) continue;
		u64 word = mine;
		if (call.sendStride != 0) word = read(call.send + r * call.sendStride, (u32)call.bytes, align, w, chunk);
		dev::store_line((u64*)(slot(call, r, w, call.rank * stride) + chunk * ChunkBytes), word);
	}
}

// line_sum is AllReduce in one step, ReduceScatter and Reduce.
template <class N, int W>
DEVICE void line_sum(const Call& call) {
	Worker w = worker(call);
	if (w.warp == w.warps) speak(call, w);
	u32 bytes = (u32)call.bytes, chunks = chunks_of(bytes), stride = chunks * ChunkBytes;
	const char* part = call.send + call.rank * call.sendStride;
	u32 from = unit(part), to = unit(call.recv);
	for (u32 chunk = w.warp; w.warp < w.warps && chunk < chunks; chunk += w.warps) {
		u64 mine = read(part, bytes, from, w, chunk), got[W];
		send_parts<W>(call, w, chunk, stride, mine);
		if (call.recvFrom == 0) continue;
		const char* lines = slot(call, call.rank, w, 0) + chunk * ChunkBytes;
		if (!collect<W>(call, w, others(call, call.recvFrom), lines, stride, got)) break;
		write(call.recv, bytes, to, w, chunk, total<N, W>(call, w, mine, got));
	}
	finish(call, w.epoch);
}

// line_copy is AllGather, Broadcast, AllToAll and Barrier.
template <int W>
DEVICE void line_copy(const Call& call) {
	Worker w = worker(call);
	if (w.warp == w.warps) speak(call, w);
	u32 bytes = (u32)call.bytes, chunks = chunks_of(bytes), stride = chunks * ChunkBytes;
	const char* part = call.send + call.rank * call.sendStride;
	u32 from = unit(part), to = unit((const void*)((u64)call.recv | call.recvStride));
	bool gives = (call.sendTo | (call.recvFrom >> call.rank & 1)) != 0;
	for (u32 chunk = w.warp; w.warp < w.warps && chunk < chunks; chunk += w.warps) {
		u64 mine = read(part, gives ? bytes : 0, from, w, chunk), got[W];
		send_parts<W>(call, w, chunk, stride, mine);
		const char* lines = slot(call, call.rank, w, 0) + chunk * ChunkBytes;
		if (!collect<W>(call, w, others(call, call.recvFrom), lines, stride, got)) break;
#pragma unroll
		for (int r = 0; r < W; r++)
			if (call.recvFrom >> r & 1)
				write(call.recv + r * call.recvStride, bytes, to, w, chunk, r == call.rank ? mine : got[r]);
	}
	finish(call, w.epoch);
}

// part_bytes is the size of the part of a rank in two steps; the last ones may be short or empty.
DEVICE u32 part_bytes(const Call& call, u32 r) {
	u32 begin = r * (u32)call.sendStride, bytes = (u32)call.bytes;
	return begin >= bytes ? 0 : bytes - begin < call.sendStride ? bytes - begin : (u32)call.sendStride;
}

// scatter is the first step: each rank gets the others' inputs of its part.
template <int W>
DEVICE void scatter(const Call& call, const Worker& w, u32 chunks, u32 stride) {
	u32 from = unit(call.send), part = (u32)call.sendStride;
	for (u32 chunk = w.warp; chunk < chunks; chunk += w.warps)
#pragma unroll
		for (int k = 1; k < W; k++) {
			u32 r = (call.rank + k) % W;
			if (r >= call.ranks || chunk * ChunkData >= part_bytes(call, r)) continue;
			u64 word = read(call.send + r * part, part_bytes(call, r), from, w, chunk);
			dev::store_line((u64*)(slot(call, r, w, call.rank * stride) + chunk * ChunkBytes), word);
		}
}

// share is the second step: each rank reduces its part and gives it to the others.
template <class N, int W>
DEVICE bool share(const Call& call, const Worker& w, u32 chunks, u32 stride, u32 second) {
	u32 begin = call.rank * (u32)call.sendStride, bytes = part_bytes(call, call.rank);
	u32 from = unit(call.send), to = unit(call.recv), peers = others(call, (1u << call.ranks) - 1);
	for (u32 chunk = w.warp; chunk < chunks && chunk * ChunkData < bytes; chunk += w.warps) {
		u64 mine = read(call.send + begin, bytes, from, w, chunk), got[W];
		const char* lines = slot(call, call.rank, w, 0) + chunk * ChunkBytes;
		if (!collect<W>(call, w, peers, lines, stride, got)) return false;
		u64 sum = total<N, W>(call, w, mine, got);
#pragma unroll
		for (int k = 1; k < W; k++) {
			u32 r = (call.rank + k) % W;
			if (r < call.ranks)
				dev::store_line((u64*)(slot(call, r, w, second + call.rank * stride) + chunk * ChunkBytes), sum);
		}
		write(call.recv + begin, bytes, to, w, chunk, sum);
	}
	return true;
}

// gather is the last step: each rank takes the parts of the others. A warp writes what it has itself
// read in the first step, so the output may be the input.
template <int W>
DEVICE void gather(const Call& call, const Worker& w, u32 chunks, u32 stride, u32 second) {
	u32 to = unit(call.recv), part = (u32)call.sendStride;
	for (u32 chunk = w.warp; chunk < chunks; chunk += w.warps) {
		u32 expected = 0;
#pragma unroll
		for (int r = 0; r < W; r++)
			if (r < call.ranks && r != call.rank && chunk * ChunkData < part_bytes(call, r)) expected |= 1u << r;
		u64 got[W];
		const char* lines = slot(call, call.rank, w, second) + chunk * ChunkBytes;
		if (!collect<W>(call, w, expected, lines, stride, got)) return;
#pragma unroll
		for (int r = 0; r < W; r++)
			if (expected >> r & 1) write(call.recv + r * part, part_bytes(call, r), to, w, chunk, got[r]);
	}
}

// line_two_shot is AllReduce in two steps, over parts of sendStride bytes, a multiple of 8.
template <class N, int W>
DEVICE void line_two_shot(const Call& call) {
	Worker w = worker(call);
	u32 all = chunks_of((u32)call.sendStride), stride = all * ChunkBytes, second = HalfBytes / 2;
	if (w.warp == w.warps) {
		speak(call, w);
	} else {
		scatter<W>(call, w, all, stride);
		if (share<N, W>(call, w, all, stride, second)) gather<W>(call, w, all, stride, second);
	}
	finish(call, w.epoch);
}
