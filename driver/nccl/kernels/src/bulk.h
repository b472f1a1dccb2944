// Kernels for large messages. Peers read and write the buffers themselves, which are symmetric: nothing
// is copied, and ranks meet before and after. Parts of the work that are not multiples of 16 bytes, or
// buffers that are not aligned to 16 bytes, go element by element.
#pragma once
#include <any.h>
#include <guard.h>

// enter waits until all ranks have come: their input is there and their output may be written. All threads
// of all blocks call it. After a fault it tells no peer that this rank has come. If the host has ended the
// kernels, which it writes to the first state, no memory of peers is read or written: they may have given
// up this call, and use their buffers again.
DEVICE bool enter(const Bulk& call, const Begun& begun) {
	u32 r = dev::thread(), end = 0;
	u64 epoch = begun.epoch();
	bool well = begun.well();
	if (well && r == call.rank) end = dev::load_relaxed(&state(call, 0)->fault);
	bool peer = well && r < call.ranks && r != call.rank;
	if (peer && dev::block() == 0) {
		Header* h = &of(call, r)->headers[epoch & 1][call.rank];
		dev::release(&h->low, half(call.digest, epoch));
		dev::store_relaxed(&h->high, half(call.digest >> 32, epoch));
	}
	return dev::all_block(well && (!peer || meet<true>(call, r, epoch)) && !ended(call, end));
}

// withdraw takes back what enter has told the others, on the same threads. A peer that comes after this
// rank has given up, and may use its buffers again, must not go on. The half that missing reads stays.
DEVICE void withdraw(const Bulk& call, const Begun& begun) {
	u32 r = dev::thread();
	if (!begun.well() || dev::block() != 0 || r >= call.ranks || r == call.rank) return;
	dev::store_relaxed(&of(call, r)->headers[begun.epoch() & 1][call.rank].low, half(0, ~begun.epoch()));
}

// done waits until the block of the rank that a thread stands for is done.
DEVICE bool done(const Bulk& call, u32 r, u64 epoch) {
	Guard guard;
	while (dev::acquire(&own(call)->done[dev::block()][r]) < epoch)
		if (!go_on(guard, call, epoch)) return false;
	return true;
}

// leave waits until no rank needs this rank's memory any more: until the same block of every rank is done.
// It returns false if one is not.
DEVICE bool leave(const Bulk& call, u64 epoch) {
	dev::sync_block();
	u32 r = dev::thread();
	bool came = true;
	if (r < call.ranks && r != call.rank) {
		dev::release(&of(call, r)->done[dev::block()][call.rank], epoch);
		came = done(call, r, epoch);
	}
	return dev::all_block(came);
}

// A block that fails marks what it, and the same block of every other rank, was to write to the output of
// this rank. Other ranks may still write correct data over marks, and if the output is the input they may
// read marks, and get NaNs. But no other rank reads or writes the part of this rank: so some marks stay.
// Every block has numbers there, since what bulk kernels serve has more than a pack for each thread. Only a
// broadcast has no such part.
DEVICE u64 index() { return (u64)dev::block() * dev::threads() + dev::thread(); }
DEVICE u64 stride() { return (u64)dev::blocks() * dev::threads(); }

// Span is where packs begin and end in a buffer of elements.
struct Span {
	u64 head, packs, bytes;

	// rest is how many bytes are not in packs, and beyond where the i-th of them lies.
	MEMBER u64 rest() const { return bytes - 16 * packs; }
	MEMBER u64 beyond(u64 i) const { return i < head ? i : i + 16 * packs; }
};

// span_of finds the packs of two buffers. There are none if the buffers differ modulo 16.
DEVICE Span span_of(u64 bytes, u64 a, u64 b) {
	Span s = {bytes, 0, bytes};
	if (a % 16 != b % 16) return s;
	u64 head = (16 - a % 16) % 16;
	if (head >= bytes) return s;
	s.head = head;
	s.packs = (bytes - head) / 16;
	return s;
}

template <class N, int W>
DEVICE Pack pack_total(Total<N>& a, Total<N>& b, u32 divisor) {
	Pack p;
	p.a = result<N, W>(a, divisor);
	p.b = result<N, W>(b, divisor);
	return p;
}

DEVICE void mark_packs(char* at, u64 packs) {
#pragma unroll 1
	for (u64 i = index(); i < packs; i += stride()) dev::store_once((Pack*)at + i, Pack{Mark, Mark});
}

// element_total is the reduction of one element over ranks, which push_element and put_element write.
template <class N>
DEVICE u64 element_total(const Bulk& call, u64 offset) {
	if constexpr (is_any<N>) {
		u64 words[MaxRanks];
#pragma unroll
		for (int r = 0; r < MaxRanks; r++)
			if (r < call.ranks) words[r] = element_at(call, call.sendAt[r] + offset);
		return combined_any<MaxRanks>(call, words);
	} else {
		Total<N> t;
		for (u32 r = 0; r < call.ranks; r++) {
			u64 word = *(const volatile typename N::Element*)(call.sendAt[r] + offset);
			if (r == 0) first(t, word);
			else next(t, call.op, word);
		}
		if constexpr (overflows<N>) {
			if (call.divisor != 1 && !finite(t)) {
				Words<MaxRanks> words;
#pragma unroll
				for (u32 r = 0; r < MaxRanks; r++)
					if (r < call.ranks) words.of[r] = *(const volatile typename N::Element*)(call.sendAt[r] + offset);
				return average_again<N, MaxRanks>(words, call.ranks);
			}
		}
		return result<N, MaxRanks>(t, call.divisor);
	}
}

template <class N>
DEVICE void put_element(const Bulk& call, char* at, u64 word) {
	if constexpr (is_any<N>) put_element_at(call, at, word);
	else *(volatile typename N::Element*)at = (typename N::Element)word;
}

// put_own is put_element for what only this rank writes.
template <class N>
DEVICE void put_own(const Bulk& call, u64 at, u64 word) {
	if constexpr (is_any<N>) put_element_at(call, call.recv + at, word);
	else *(typename N::Element*)(call.recv + at) = (typename N::Element)word;
}

template <class N>
DEVICE u64 element_bytes(const Bulk& call) {
	if constexpr (is_any<N>) return type_bytes(call);
	else return sizeof(typename N::Element);
}

// pull reads a pack of each rank and reduces them in the order of ranks. Each rank reads the peers in
// another order, so that not all ranks read from one at once.
template <int W>
DEVICE void pull(const Bulk& call, u64 offset, Pack* got) {
#pragma unroll
	for (int k = 0; k < W; k++) {
		u32 r = (call.rank + k) % W;
		if (r < call.ranks) got[k] = dev::load_once((const Pack*)(call.sendAt[r] + offset));
	}
}

// pulled is the pack of a rank among those that pull has read.
template <int W>
DEVICE void pulled(const Bulk& call, const Pack* got, int r, Pack& p) {
	int at = r - (int)call.rank;
	if (at < 0) at += W;
	p = got[0];
#pragma unroll
	for (int k = 1; k < W; k++)
		if (k == at) p = got[k];
}

template <int W>
DEVICE Pack reduce_any(const Bulk& call, const Pack* got) {
	Pack packs[W], sum;
#pragma unroll
	for (int r = 0; r < W; r++)
		if (r < call.ranks) pulled<W>(call, got, r, packs[r]);
#pragma unroll 1
	for (int i = 0; i < 2; i++) {
		u64 words[W];
#pragma unroll
		for (int r = 0; r < W; r++) words[r] = i == 0 ? packs[r].a : packs[r].b;
		(i == 0 ? sum.a : sum.b) = combined_any<W>(call, words);
	}
	return sum;
}

template <class N, int W>
DEVICE Pack average_pack_again(const Bulk& call, const Pack* got) {
	Words<W> a, b;
#pragma unroll
	for (int r = 0; r < W; r++) {
		if (r >= call.ranks) break;
		Pack p;
		pulled<W>(call, got, r, p);
		a.of[r] = p.a;
		b.of[r] = p.b;
	}
	return {average_again<N, W>(a, call.ranks), average_again<N, W>(b, call.ranks)};
}

template <class N, int W>
DEVICE Pack reduce(const Bulk& call, const Pack* got) {
	if constexpr (is_any<N>) {
		return reduce_any<W>(call, got);
	} else {
		Total<N> a, b;
#pragma unroll
		for (int r = 0; r < W; r++) {
			if (r >= call.ranks) break;
			Pack p;
			pulled<W>(call, got, r, p);
			if (r == 0) {
				first(a, p.a);
				first(b, p.b);
			} else {
				next(a, call.op, p.a);
				next(b, call.op, p.b);
			}
		}
		if constexpr (overflows<N>)
			if (call.divisor != 1 && !(finite(a) && finite(b))) return average_pack_again<N, W>(call, got);
		return pack_total<N, W>(a, b, call.divisor);
	}
}

template <class N>
DEVICE void push_element(const Bulk& call, u64 offset, u64 word) {
	for (u32 r = 0; r < call.ranks; r++) put_element<N>(call, call.recvAt[r] + offset, word);
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

// Share is what a rank reduces in two steps: packs, the first at a distance in bytes. Elements that are not
// in packs are dealt out in turn.
struct Share {
	u64 at, packs;
};

DEVICE Share share_of(const Bulk& call, const Span& s, u32 r) {
	u64 part = (s.packs + call.ranks - 1) / call.ranks, first = part * r;
	return {s.head + first * 16, first >= s.packs ? 0 : s.packs - first < part ? s.packs - first : part};
}

template <class N>
DEVICE void mark_share(const Bulk& call, u32 r) {
	Span s = span_of(call.bytes, (u64)call.sendAt[r], (u64)call.recvAt[r]);
	Share share = share_of(call, s, r);
	mark_packs(call.recv + share.at, share.packs);
	u64 size = element_bytes<N>(call);
	for (u64 i = (index() * call.ranks + r) * size; i < s.rest(); i += stride() * call.ranks * size)
		put_element<N>(call, call.recvAt[call.rank] + s.beyond(i), Mark);
}

// bulk_two_shot is AllReduce in two steps: each rank reduces one part, and then pushes it to all. That is
// faster than pushing each pack as soon as it is reduced: links carry reads and writes better one after the
// other.
template <class N, int W>
DEVICE void bulk_two_shot(const Bulk& call) {
	Begun begun = begin(call);
	bool well = enter(call, begun);
	if (well) {
		Span s = span_of(call.bytes, (u64)call.send, (u64)call.recv);
		Share share = share_of(call, s, call.rank);
		reduce_part<N, W, rounds(W)>(call, share.at, share.at, share.packs);
		share_part<W, 4>(call, share.at, share.packs);
		u64 size = element_bytes<N>(call);
		for (u64 i = (index() * call.ranks + call.rank) * size; i < s.rest(); i += stride() * call.ranks * size)
			push_element<N>(call, s.beyond(i), element_total<N>(call, s.beyond(i)));
		well = leave(call, begun.epoch());
	}
	if (!well) withdraw(call, begun);
	for (u32 r = 0; !well && r < call.ranks; r++) mark_share<N>(call, r);
	count(call, begun.epoch());
}

// bulk_sum is ReduceScatter and Reduce: each rank, or the root alone, pulls its part of every input.
template <class N, int W>
DEVICE void bulk_sum(const Bulk& call) {
	Begun begun = begin(call);
	u64 part = call.rank * call.sendStride, size = element_bytes<N>(call);
	Span s = span_of(call.recvFrom == 0 ? 0 : call.bytes, (u64)call.send + part, (u64)call.recv);
	bool well = enter(call, begun);
	if (well) {
		reduce_part<N, W, rounds(W)>(call, part + s.head, s.head, s.packs);
		for (u64 i = index() * size; i < s.rest(); i += stride() * size)
			put_own<N>(call, s.beyond(i), element_total<N>(call, part + s.beyond(i)));
		well = leave(call, begun.epoch());
	}
	if (!well) {
		withdraw(call, begun);
		mark_packs(call.recv + s.head, s.packs);
		for (u64 i = index() * size; i < s.rest(); i += stride() * size)
			put_own<N>(call, s.beyond(i), Mark);
	}
	count(call, begun.epoch());
}

// unit_of is the largest power of two, up to 8, that the places and the size of a part are multiples of. What
// is not in packs is pushed and marked by it: so no element is half a mark, whose type is not known.
DEVICE u32 unit_of(const char* from, const char* to, u64 bytes) {
	u64 all = (u64)from | (u64)to | bytes | 8;
	return (u32)(all & (~all + 1));
}

template <class E>
DEVICE void push_rest(const Bulk& call, const Span& s, const char* from, u64 to, u32 set) {
#pragma unroll 1
	for (u64 i = index() * sizeof(E); i < s.rest(); i += stride() * sizeof(E))
		for (u32 r = 0; r < call.ranks; r++)
			if (set >> r & 1) *(volatile E*)(call.recvAt[r] + to + s.beyond(i)) = *(const E*)(from + s.beyond(i));
}

template <class E>
DEVICE void mark_rest(const Span& s, char* at) {
#pragma unroll 1
	for (u64 i = index() * sizeof(E); i < s.rest(); i += stride() * sizeof(E)) *(volatile E*)(at + s.beyond(i)) = (E)Mark;
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
	u32 unit = unit_of(from, call.recv + to, call.bytes);
	if (unit == 8) push_rest<u64>(call, s, from, to, set);
	else if (unit == 4) push_rest<u32>(call, s, from, to, set);
	else if (unit == 2) push_rest<u16>(call, s, from, to, set);
	else push_rest<u8>(call, s, from, to, set);
}

// mark_part marks the part that rank r pushes to this one, pack by pack as that rank pushes it: each block
// what the same block of r does. In place, a rank pushes from where its part lies in its output, which is
// another place on every rank; else inputs lie alike.
DEVICE void mark_part(const Bulk& call, u32 r) {
	u64 to = r * call.recvStride;
	bool inPlace = call.sendStride == 0 && call.send == call.recv + call.rank * call.recvStride;
	const char* from = inPlace ? call.recvAt[r] + to : call.sendAt[r] + call.rank * call.sendStride;
	Span s = span_of(call.bytes, (u64)from, (u64)call.recvAt[r] + to);
	char* at = call.recv + to;
	mark_packs(at + s.head, s.packs);
	u32 unit = unit_of(from, call.recvAt[r] + to, call.bytes);
	if (unit == 8) mark_rest<u64>(s, at);
	else if (unit == 4) mark_rest<u32>(s, at);
	else if (unit == 2) mark_rest<u16>(s, at);
	else mark_rest<u8>(s, at);
}

// bulk_copy is AllGather, Broadcast and AllToAll: each rank pushes its parts. In place, what a rank
// would push to itself is there already.
template <int W>
DEVICE void bulk_copy(const Bulk& call) {
	Begun begun = begin(call);
	bool well = enter(call, begun);
	if (well) {
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
		well = leave(call, begun.epoch());
	}
	if (!well) withdraw(call, begun);
	for (u32 r = 0; !well && r < call.ranks; r++)
		if (call.recvFrom >> r & 1) mark_part(call, r);
	count(call, begun.epoch());
}
