// Kernels whose data carry their own flags. A rank writes lines of 128 bytes into the exchange memory
// of its peers: 120 bytes of data and a flag, which stands for the call. Who finds the flag has the data,
// so there is no barrier and one way over the link; and data of another call are never taken. Buffers may
// be any memory: peers never touch them.
//
// A warp has U chunks under way: it asks for all that it reads of them, or waits for, before it uses the
// first. Small messages have a warp for every chunk, so their U is 1. A warp has the same chunks in all
// steps, w.warps apart, and reads before it writes, so the output may be the input.
#pragma once
#include <guard.h>
#include <number.h>
#include <word.h>

enum : u32 {
	LineData = 120,
	ChunkBytes = 256,  // two lines: what a warp moves at once
	ChunkData = 2 * LineData,
};

// Wide is how many chunks a warp has under way where there are more chunks than warps. More of them
// take longer code, which is fetched anew in every launch, and registers that keep a second block of
// 512 threads from a multiprocessor.
constexpr int Wide = 2;

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

// holds tells whether so many bytes have a chunk.
DEVICE bool holds(u32 bytes, u32 chunk) { return chunk * ChunkData < bytes; }

// read fetches words of U chunks. What lies whole and aligned is asked for without a branch between.
template <int U>
DEVICE void read(const char* buffer, u32 bytes, u32 unit, const Worker& w, u32 chunk, u64* words) {
	bool odd = false;
#pragma unroll
	for (int u = 0; u < U; u++) {
		u32 offset = (chunk + u * w.warps) * ChunkData + w.offset;
		bool whole = unit == 8 && offset + 8 <= bytes;
		words[u] = w.flagged ? w.flag : 0;
		if (whole && !w.flagged) words[u] = *(const u64*)(buffer + offset);
		odd = odd || (!whole && !w.flagged && offset < bytes);
	}
	if (!odd) return;
#pragma unroll
	for (int u = 0; u < U; u++) {
		u32 offset = (chunk + u * w.warps) * ChunkData + w.offset;
		if (!w.flagged && offset < bytes) words[u] = load_odd(buffer + offset, bytes - offset, unit);
	}
}

DEVICE void write(char* buffer, u32 bytes, u32 unit, const Worker& w, u32 chunk, u64 word) {
	if (!w.flagged) store_word(buffer, chunk * ChunkData + w.offset, bytes, unit, word);
}

// give puts a chunk into the exchange memory of a rank.
DEVICE void give(const Call& call, const Worker& w, u32 rank, u32 offset, u32 chunk, u64 word) {
	dev::store_line((u64*)(slot(call, rank, w, offset) + chunk * ChunkBytes), word);
}

// collect waits for U chunks of sets of ranks. The lines of rank r lie r * stride from the first. What has
// not come is asked for again. It returns false if the wait is to end.
template <int W, int U>
DEVICE bool collect(const Call& call, const Worker& w, const u32* from, const char* lines, u32 stride, u64 (*got)[W]) {
	bool here[U] = {};
	for (Guard guard;;) {
#pragma unroll
		for (int u = 0; u < U; u++)
#pragma unroll
			for (int r = 0; r < W; r++)
				if ((U == 1 || !here[u]) && from[u] >> r & 1)
					got[u][r] = dev::load_line((const u64*)(lines + r * stride + u * w.warps * ChunkBytes));
		bool all = true;
#pragma unroll
		for (int u = 0; u < U; u++) {
			bool ready = true;
#pragma unroll
			for (int r = 0; r < W; r++)
				if (from[u] >> r & 1) ready = ready && (!w.flagged || got[u][r] == w.flag);
			here[u] = dev::all_warp(ready);
			all = all && here[u];
		}
		if (all) return true;
		if (dev::any_warp(!go_on(guard, call, w.epoch))) return false;
	}
}

// collect_same waits for U chunks of so many bytes that the same ranks send.
template <int W, int U>
DEVICE bool collect_same(const Call& call, const Worker& w, u32 set, u32 bytes, u32 chunk, u32 stride, u64 (*got)[W]) {
	u32 from[U];
#pragma unroll
	for (int u = 0; u < U; u++) from[u] = holds(bytes, chunk + u * w.warps) ? set & ~(1u << call.rank) : 0;
	return collect<W, U>(call, w, from, slot(call, call.rank, w, 0) + chunk * ChunkBytes, stride, got);
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

// send_same gives each rank of sendTo the same U chunks of so many bytes.
template <int W, int U>
DEVICE void send_same(const Call& call, const Worker& w, u32 bytes, u32 chunk, u32 offset, const u64* words) {
#pragma unroll
	for (int u = 0; u < U; u++)
#pragma unroll
		for (int k = 1; k < W; k++) {
			u32 r = (call.rank + k) % W, at = chunk + u * w.warps;
			if (holds(bytes, at) && call.sendTo >> r & 1) give(call, w, r, offset, at, words[u]);
		}
}

// part_bytes is the size of the part of a rank in two steps; the last ones may be short or empty.
DEVICE u32 part_bytes(const Call& call, u32 r) {
	u32 part = (u32)call.sendStride, begin = r * part, bytes = (u32)call.bytes;
	return begin >= bytes ? 0 : bytes - begin < part ? bytes - begin : part;
}

// send_parts gives each rank of sendTo U chunks of its part, which has so many bytes, or what it has in
// two steps. All are read before the first is stored, since no load overtakes a store.
template <int W, int U, bool TwoSteps>
DEVICE void send_parts(const Call& call, const Worker& w, u32 bytes, u32 chunk, u32 stride) {
	u32 align = unit((const void*)((u64)call.send | call.sendStride)), has[W];
	u64 words[W][U];
#pragma unroll
	for (int k = 1; k < W; k++) {
		u32 r = (call.rank + k) % W;
		has[k] = !(call.sendTo >> r & 1) ? 0 : TwoSteps ? part_bytes(call, r) : bytes;
		read<U>(call.send + r * call.sendStride, has[k], align, w, chunk, words[k]);
	}
#pragma unroll
	for (int u = 0; u < U; u++)
#pragma unroll
		for (int k = 1; k < W; k++)
			if (holds(has[k], chunk + u * w.warps))
				give(call, w, (call.rank + k) % W, call.rank * stride, chunk + u * w.warps, words[k][u]);
}

// send gives each rank of sendTo what it needs of U chunks.
template <int W, int U>
DEVICE void send(const Call& call, const Worker& w, u32 bytes, u32 chunk, u32 stride, const u64* mine) {
	if (call.sendStride != 0) send_parts<W, U, false>(call, w, bytes, chunk, stride);
	else send_same<W, U>(call, w, bytes, chunk, call.rank * stride, mine);
}

// line_sum is AllReduce in one step, ReduceScatter and Reduce.
template <class N, int W, int U>
DEVICE void line_sum(const Call& call) {
	Worker w = worker(call);
	if (w.warp == w.warps) speak(call, w);
	u32 bytes = (u32)call.bytes, stride = chunks_of(bytes) * ChunkBytes;
	const char* part = call.send + call.rank * call.sendStride;
	u32 align = unit(part), to = unit(call.recv);
	for (u32 chunk = w.warp; w.warp < w.warps && holds(bytes, chunk); chunk += U * w.warps) {
		u64 mine[U], got[U][W];
		read<U>(part, bytes, align, w, chunk, mine);
		send<W, U>(call, w, bytes, chunk, stride, mine);
		if (call.recvFrom == 0) continue;
		if (!collect_same<W, U>(call, w, call.recvFrom, bytes, chunk, stride, got)) break;
#pragma unroll
		for (int u = 0; u < U; u++)
			if (holds(bytes, chunk + u * w.warps))
				write(call.recv, bytes, to, w, chunk + u * w.warps, total<N, W>(call, w, mine[u], got[u]));
	}
	finish(call, w.epoch);
}

// line_copy is AllGather, Broadcast, AllToAll and Barrier.
template <int W, int U>
DEVICE void line_copy(const Call& call) {
	Worker w = worker(call);
	if (w.warp == w.warps) speak(call, w);
	u32 bytes = (u32)call.bytes, stride = chunks_of(bytes) * ChunkBytes;
	const char* part = call.send + call.rank * call.sendStride;
	u32 align = unit(part), to = unit((const void*)((u64)call.recv | call.recvStride));
	bool gives = (call.sendTo | (call.recvFrom >> call.rank & 1)) != 0;
	for (u32 chunk = w.warp; w.warp < w.warps && holds(bytes, chunk); chunk += U * w.warps) {
		u64 mine[U], got[U][W];
		read<U>(part, gives ? bytes : 0, align, w, chunk, mine);
		send<W, U>(call, w, bytes, chunk, stride, mine);
		if (!collect_same<W, U>(call, w, call.recvFrom, bytes, chunk, stride, got)) break;
#pragma unroll
		for (int u = 0; u < U; u++)
#pragma unroll
			for (int r = 0; r < W; r++)
				if (call.recvFrom >> r & 1)
					write(call.recv + r * call.recvStride, bytes, to, w, chunk + u * w.warps,
						r == call.rank ? mine[u] : got[u][r]);
	}
	finish(call, w.epoch);
}

// share is the second of two steps: each rank reduces its part and gives it to the others.
template <class N, int W>
DEVICE bool share(const Call& call, const Worker& w, u32 stride, u32 second) {
	u32 bytes = part_bytes(call, call.rank), begin = call.rank * (u32)call.sendStride;
	u32 align = unit(call.send), to = unit(call.recv);
	for (u32 chunk = w.warp; holds(bytes, chunk); chunk += w.warps) {
		u64 word, got[1][W];
		read<1>(call.send + begin, bytes, align, w, chunk, &word);
		if (!collect_same<W, 1>(call, w, call.recvFrom, bytes, chunk, stride, got)) return false;
		word = total<N, W>(call, w, word, got[0]);
		send_same<W, 1>(call, w, bytes, chunk, second + call.rank * stride, &word);
		write(call.recv + begin, bytes, to, w, chunk, word);
	}
	return true;
}

// gather is the last step: each rank takes the parts of the others.
template <int W>
DEVICE void gather(const Call& call, const Worker& w, u32 chunks, u32 stride, u32 second) {
	u32 to = unit(call.recv), part = (u32)call.sendStride;
	for (u32 chunk = w.warp; chunk < chunks; chunk += w.warps) {
		u32 from = 0;
		u64 got[1][W];
#pragma unroll
		for (int r = 0; r < W; r++)
			if (r != call.rank && r < call.ranks && holds(part_bytes(call, r), chunk)) from |= 1u << r;
		if (!collect<W, 1>(call, w, &from, slot(call, call.rank, w, second) + chunk * ChunkBytes, stride, got)) return;
#pragma unroll
		for (int r = 0; r < W; r++)
			if (from >> r & 1) write(call.recv + r * part, part_bytes(call, r), to, w, chunk, got[0][r]);
	}
}

// line_two_shot is AllReduce in two steps, over parts of sendStride bytes, a multiple of 8. In the first
// each rank gets the others' inputs of its part. A warp has one chunk under way in each: the steps of
// other warps are between, and the code of several would be twice as long as what it does.
template <class N, int W>
DEVICE void line_two_shot(const Call& call) {
	Worker w = worker(call);
	u32 chunks = chunks_of((u32)call.sendStride), stride = chunks * ChunkBytes, second = HalfBytes / 2;
	if (w.warp == w.warps) {
		speak(call, w);
	} else {
		for (u32 chunk = w.warp; chunk < chunks; chunk += w.warps) send_parts<W, 1, true>(call, w, 0, chunk, stride);
		if (share<N, W>(call, w, stride, second)) gather<W>(call, w, chunks, stride, second);
	}
	finish(call, w.epoch);
}
