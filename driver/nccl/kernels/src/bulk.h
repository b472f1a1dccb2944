// Kernels for large messages. Peers read and write the buffers themselves, which are symmetric: nothing
// is copied, and ranks meet before and after. Parts of the work that are not multiples of 16 bytes, or
// buffers that are not aligned to 16 bytes, go element by element.
#pragma once
#include <guard.h>
#include <number.h>

// enter waits until all ranks have come: their input is there and their output may be written. All
// threads of all blocks call it.
DEVICE bool enter(const Bulk& call, u64 epoch) {
	u32 r = dev::thread();
	bool peer = r < call.ranks && r != call.rank;
	if (peer && dev::block() == 0) {
		Header* h = &of(call, r)->headers[epoch & 1][call.rank];
		dev::release(&h->low, half(call.digest, epoch));
		dev::store_relaxed(&h->high, half(call.digest >> 32, epoch));
	}
	return dev::all_block(!peer || meet<true>(call, r, epoch));
}

// leave waits until no rank needs this rank's memory any more: the same block of every rank is done.
DEVICE void leave(const Bulk& call, u64 epoch) {
	dev::sync_block();
	u32 r = dev::thread();
	if (r >= call.ranks || r == call.rank) return;
	dev::release(&of(call, r)->done[dev::block()][call.rank], epoch);
	Guard guard;
	while (dev::acquire(&own(call)->done[dev::block()][r]) < epoch)
		if (!go_on(guard, call, epoch)) return;
}

DEVICE u64 index() { return (u64)dev::block() * dev::threads() + dev::thread(); }
DEVICE u64 stride() { return (u64)dev::blocks() * dev::threads(); }

// Span is where packs begin and end in a buffer of elements.
struct Span {
	u64 head, packs, bytes;
};

// span_of finds the packs of buffers that lie alike; of others there are none.
DEVICE Span span_of(u64 bytes, u64 a, u64 b) {
	Span s = {bytes, 0, bytes};
	if (a % 16 != b % 16) return s;
	u64 head = (16 - a % 16) % 16;
	if (head >= bytes) return s;
	s.head = head;
	s.packs = (bytes - head) / 16;
	return s;
}

template <class N>
DEVICE Pack pack_total(Total<N>& a, Total<N>& b, u32 divisor) {
	Pack p;
	p.a = result(a, divisor);
	p.b = result(b, divisor);
	return p;
}

// Element is a reduction of one element over ranks.
template <class N>
DEVICE typename N::Element element_total(const Bulk& call, u64 offset) {
	Total<N> t;
	for (u32 r = 0; r < call.ranks; r++) {
		u64 word = *(const volatile typename N::Element*)(call.sendAt[r] + offset);
		if (r == 0) first(t, word);
		else next(t, call.op, word);
	}
	return (typename N::Element)result(t, call.divisor);
}

// pull reads a pack of each rank and reduces them in the order of ranks. It asks the peers in an order
// of its own, so that not all ranks ask one at once.
template <int W>
DEVICE void pull(const Bulk& call, u64 offset, Pack* got) {
#pragma unroll
	for (int k = 0; k < W; k++) {
		u32 r = (call.rank + k) % W;
		if (r < call.ranks) got[k] = dev::load_once((const Pack*)(call.sendAt[r] + offset));
	}
}

template <class N, int W>
DEVICE Pack reduce(const Bulk& call, const Pack* got) {
	Total<N> a, b;
#pragma unroll
	for (int r = 0; r < W; r++) {
		if (r >= call.ranks) break;
		int at = r - (int)call.rank;
		if (at < 0) at += W;
		Pack p = got[0];
#pragma unroll
		for (int k = 1; k < W; k++)
			if (k == at) p = got[k];
		if (r == 0) {
			first(a, p.a);
			first(b, p.b);
		} else {
			next(a, call.op, p.a);
			next(b, call.op, p.b);
		}
	}
	return pack_total(a, b, call.divisor);
}

template <class N>
DEVICE void push_element(const Bulk& call, u64 offset, typename N::Element e) {
	for (u32 r = 0; r < call.ranks; r++) *(volatile typename N::Element*)(call.recvAt[r] + offset) = e;
}

// rounds is how many packs of each rank a thread has under way: as many as registers hold.
DEVICE constexpr int rounds(int ranks) { return ranks > 4 ? 1 : 2; }

// reduce_part pulls a part of every input, reduces it and stores it. Both begin so many bytes from the
// inputs and the output of this rank.
template <class N, int W, int U>
DEVICE void reduce_part(const Bulk& call, u64 from, u64 to, u64 packs) {
	for (u64 i = index(); i < packs; i += stride() * U) {
		Pack got[U][W];
#pragma unroll
		for (int u = 0; u < U; u++)
			if (i + u * stride() < packs) pull<W>(call, from + (i + u * stride()) * 16, got[u]);
#pragma unroll
		for (int u = 0; u < U; u++)
			if (i + u * stride() < packs)
				dev::store_once((Pack*)(call.recv + to) + i + u * stride(), reduce<N, W>(call, got[u]));
	}
}

// share_part pushes a part of this rank's output to the others. A thread pushes what it has stored.
template <int W, int U>
DEVICE void share_part(const Bulk& call, u64 at, u64 packs) {
	for (u64 i = index(); i < packs; i += stride() * U) {
		Pack sum[U];
#pragma unroll
		for (int u = 0; u < U; u++)
			if (i + u * stride() < packs) sum[u] = dev::load_once((const Pack*)(call.recv + at) + i + u * stride());
#pragma unroll
		for (int u = 0; u < U; u++)
			if (i + u * stride() < packs)
#pragma unroll
				for (int k = 1; k < W; k++) {
					u32 r = (call.rank + k) % W;
					if (r < call.ranks) dev::store_once((Pack*)(call.recvAt[r] + at) + i + u * stride(), sum[u]);
				}
	}
}

// bulk_two_shot is AllReduce in two steps: each rank reduces one part, and then pushes it to all. It is
// faster than to push each pack at once: links carry reads and writes better one after the other.
template <class N, int W>
DEVICE void bulk_two_shot(const Bulk& call) {
	u64 epoch = begin(call);
	if (!enter(call, epoch)) return finish(call, epoch);
	Span s = span_of(call.bytes, (u64)call.send, (u64)call.recv);
	u64 part = (s.packs + call.ranks - 1) / call.ranks, first = part * call.rank;
	u64 packs = first >= s.packs ? 0 : s.packs - first < part ? s.packs - first : part;
	reduce_part<N, W, rounds(W)>(call, s.head + first * 16, s.head + first * 16, packs);
	share_part<W, 4>(call, s.head + first * 16, packs);
	u64 size = sizeof(typename N::Element), inner = s.head + 16 * s.packs;
	for (u64 i = (index() * call.ranks + call.rank) * size; i < s.bytes - 16 * s.packs; i += stride() * call.ranks * size) {
		u64 offset = i < s.head ? i : i - s.head + inner;
		push_element<N>(call, offset, element_total<N>(call, offset));
	}
	leave(call, epoch);
	finish(call, epoch);
}

// bulk_sum is ReduceScatter and Reduce: each rank, or the root alone, pulls its part of every input.
template <class N, int W>
DEVICE void bulk_sum(const Bulk& call) {
	u64 epoch = begin(call);
	if (!enter(call, epoch)) return finish(call, epoch);
	u64 part = call.rank * call.sendStride;
	Span s = span_of(call.recvFrom == 0 ? 0 : call.bytes, (u64)call.send + part, (u64)call.recv);
	reduce_part<N, W, rounds(W)>(call, part + s.head, s.head, s.packs);
	u64 size = sizeof(typename N::Element), inner = s.head + 16 * s.packs;
	for (u64 i = index() * size; i < s.bytes - 16 * s.packs; i += stride() * size) {
		u64 offset = i < s.head ? i : i - s.head + inner;
		*(typename N::Element*)(call.recv + offset) = element_total<N>(call, part + offset);
	}
	leave(call, epoch);
	finish(call, epoch);
}

// push_part copies a part into the outputs of a set of ranks.
template <int W, int U>
DEVICE void push_part(const Bulk& call, const char* from, u64 to, u32 set) {
	Span s = span_of(call.bytes, (u64)from, (u64)call.recv + to);
	for (u64 i = index(); i < s.packs; i += stride() * U) {
		Pack got[U];
#pragma unroll
		for (int u = 0; u < U; u++)
			if (i + u * stride() < s.packs) got[u] = dev::load_once((const Pack*)(from + s.head) + i + u * stride());
#pragma unroll
		for (int u = 0; u < U; u++)
			if (i + u * stride() < s.packs)
#pragma unroll
				for (int k = 0; k < W; k++) {
					u32 r = (call.rank + k) % W;
					if (set >> r & 1)
						dev::store_once((Pack*)(call.recvAt[r] + to + s.head) + i + u * stride(), got[u]);
				}
	}
	u64 inner = s.head + 16 * s.packs;
	for (u64 i = index(); i < s.bytes - 16 * s.packs; i += stride()) {
		u64 offset = i < s.head ? i : i - s.head + inner;
		for (u32 r = 0; r < call.ranks; r++)
			if (set >> r & 1) *(volatile u8*)(call.recvAt[r] + to + offset) = *(const u8*)(from + offset);
	}
}

// bulk_copy is AllGather, Broadcast and AllToAll: each rank pushes its parts. In place, what a rank
// would push to itself is there already.
template <int W>
DEVICE void bulk_copy(const Bulk& call) {
	u64 epoch = begin(call);
	if (!enter(call, epoch)) return finish(call, epoch);
	u64 to = call.rank * call.recvStride;
	if (call.sendStride == 0) {
		u32 set = call.sendTo;
		if (call.send == call.recv + to) set = set & ~(1u << call.rank);
		if (set != 0) push_part<W, 4>(call, call.send, to, set);
	} else {
		for (u32 k = 0; k < call.ranks; k++) {
			u32 r = (call.rank + k) % call.ranks;
			push_part<W, 4>(call, call.send + r * call.sendStride, to, 1u << r);
		}
	}
	leave(call, epoch);
	finish(call, epoch);
}
