// Bulk kernels implement collectives on large symmetric buffers. Ranks read and write the buffers of
// their peers directly, between two barriers. Data outside aligned packs of 16 bytes is handled element
// by element.
#pragma once
#include <any.h>
#include <barrier.h>

// A block that fails poisons those elements of this rank's output that the same blocks of all ranks would
// write. Peers may overwrite poison with correct data. If the output is the input, they may also read
// poison, and then get NaNs. Poison remains at least in this rank's part, which no peer writes. Every
// block has elements there, because bulk kernels only run with more than one pack per thread. A broadcast
// has no such part.
//
// index numbers the threads of the grid, and stride is their number.
DEVICE u64 index() { return (u64)dev::block() * dev::threads() + dev::thread(); }
DEVICE u64 stride() { return (u64)dev::blocks() * dev::threads(); }

// Span locates the aligned packs in a buffer.
struct Span {
	u64 head, packs, bytes;

	// rest returns the number of bytes outside packs. beyond returns the offset of the i-th of these bytes.
	MEMBER u64 rest() const { return bytes - 16 * packs; }
	MEMBER u64 beyond(u64 i) const { return i < head ? i : i + 16 * packs; }
};

// span_of returns the packs that are aligned in both buffers. There are none if the addresses differ
// modulo 16.
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

DEVICE void poison_packs(char* at, u64 packs) {
#pragma unroll 1
	for (u64 i = index(); i < packs; i += stride()) dev::store_once((Pack*)at + i, Pack{Poison, Poison});
}

// element_total reduces one element over all ranks.
template <class N, class C>
DEVICE u64 element_total(const C& call, u64 offset) {
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

// put_own stores an element of the output that no other rank writes.
template <class N, class C>
DEVICE void put_own(const C& call, u64 at, u64 word) {
	if constexpr (is_any<N>) put_element_at(call, call.recv + at, word);
	else *(typename N::Element*)(call.recv + at) = (typename N::Element)word;
}

template <class N, class C>
DEVICE u64 element_bytes(const C& call) {
	if constexpr (is_any<N>) return type_bytes(call);
	else return sizeof(typename N::Element);
}

// pull loads a pack of each rank. To spread the load, each rank starts with a different peer.
template <int W, class C>
DEVICE void pull(const C& call, u64 offset, Pack* got) {
#pragma unroll
	for (int k = 0; k < W; k++) {
		u32 r = (call.rank + k) % W;
		if (r < call.ranks) got[k] = dev::load_once((const Pack*)(call.sendAt[r] + offset));
	}
}

// pulled stores in p the pack of rank r that pull has loaded.
template <int W, class C>
DEVICE void pulled(const C& call, const Pack* got, int r, Pack& p) {
	int at = r - (int)call.rank;
	if (at < 0) at += W;
	p = got[0];
#pragma unroll
	for (int k = 1; k < W; k++)
		if (k == at) p = got[k];
}

template <int W, class C>
DEVICE Pack reduce_any(const C& call, const Pack* got) {
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

template <class N, int W, class C>
DEVICE Pack average_pack_again(const C& call, const Pack* got) {
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

template <class N, int W, class C>
DEVICE Pack reduce(const C& call, const Pack* got) {
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

// rounds returns the number of packs of each rank that a thread keeps in flight. The number of registers
// limits it.
DEVICE constexpr int rounds(int ranks) { return ranks > 4 ? 1 : 2; }

// reduce_part reduces a part of all inputs into the output of this rank. from and to are the offsets of
// the part in the inputs and in the output.
template <class N, int W, int U, class C>
DEVICE void reduce_part(const C& call, u64 from, u64 to, u64 packs) {
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

// share_part copies a part of this rank's output to its peers. A thread copies the packs that it has
// stored.
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

// Share describes the packs that a rank reduces in a two-shot call. at is the offset of the first.
// Elements outside packs are assigned round robin.
struct Share {
	u64 at, packs;
};

DEVICE Share share_of(const Bulk& call, const Span& s, u32 r) {
	u64 part = (s.packs + call.ranks - 1) / call.ranks, first = part * r;
	return {s.head + first * 16, first >= s.packs ? 0 : s.packs - first < part ? s.packs - first : part};
}

template <class N>
DEVICE void poison_share(const Bulk& call, u32 r) {
	Span s = span_of(call.bytes, (u64)call.sendAt[r], (u64)call.recvAt[r]);
	Share share = share_of(call, s, r);
	poison_packs(call.recv + share.at, share.packs);
	u64 size = element_bytes<N>(call);
	for (u64 i = (index() * call.ranks + r) * size; i < s.rest(); i += stride() * call.ranks * size)
		put_element<N>(call, call.recvAt[call.rank] + s.beyond(i), Poison);
}

// bulk_two_shot implements two-shot AllReduce. Each rank reduces one part, and then copies it to all
// peers. Copying each pack at once was slower, because links carry reads and writes better in separate
// phases.
template <class N, int W>
DEVICE void bulk_two_shot(const Bulk& call) {
	Prologue prologue = begin(call);
	bool ok = await_peers(call, prologue);
	if (ok) {
		Span s = span_of(call.bytes, (u64)call.send, (u64)call.recv);
		Share share = share_of(call, s, call.rank);
		reduce_part<N, W, rounds(W)>(call, share.at, share.at, share.packs);
		share_part<W, 4>(call, share.at, share.packs);
		u64 size = element_bytes<N>(call);
		for (u64 i = (index() * call.ranks + call.rank) * size; i < s.rest(); i += stride() * call.ranks * size)
			push_element<N>(call, s.beyond(i), element_total<N>(call, s.beyond(i)));
		ok = await_done(call, prologue.epoch());
	}
	if (!ok) retract_header(call, prologue);
	for (u32 r = 0; !ok && r < call.ranks; r++) poison_share<N>(call, r);
	count(call, prologue.epoch());
}

// bulk_sum implements ReduceScatter and Reduce. Each rank, or only the root, reads its part of every
// input.
template <class N, int W>
DEVICE void bulk_sum(const Bulk& call) {
	Prologue prologue = begin(call);
	u64 part = call.rank * call.sendStride, size = element_bytes<N>(call);
	Span s = span_of(call.recvFrom == 0 ? 0 : call.bytes, (u64)call.send + part, (u64)call.recv);
	bool ok = await_peers(call, prologue);
	if (ok) {
		reduce_part<N, W, rounds(W)>(call, part + s.head, s.head, s.packs);
		for (u64 i = index() * size; i < s.rest(); i += stride() * size)
			put_own<N>(call, s.beyond(i), element_total<N>(call, part + s.beyond(i)));
		ok = await_done(call, prologue.epoch());
	}
	if (!ok) {
		retract_header(call, prologue);
		poison_packs(call.recv + s.head, s.packs);
		for (u64 i = index() * size; i < s.rest(); i += stride() * size)
			put_own<N>(call, s.beyond(i), Poison);
	}
	count(call, prologue.epoch());
}

// unit_of returns the largest power of two that divides the addresses and the size of a part, but at most
// 8. Copies do not know the element type. They copy and poison data outside packs in this unit, which
// never splits an element.
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
DEVICE void poison_rest(const Span& s, char* at) {
#pragma unroll 1
	for (u64 i = index() * sizeof(E); i < s.rest(); i += stride() * sizeof(E)) *(volatile E*)(at + s.beyond(i)) = (E)Poison;
}

// push_part copies a part to the outputs of a set of ranks.
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

// poison_part poisons the part that rank r copies to this rank. It uses the same packs and blocks as r.
// In place, the input of a rank is its part of its own output, so its offset differs between ranks.
// Otherwise the input has the same offset on all ranks.
DEVICE void poison_part(const Bulk& call, u32 r) {
	u64 to = r * call.recvStride;
	bool inPlace = call.sendStride == 0 && call.send == call.recv + call.rank * call.recvStride;
	const char* from = inPlace ? call.recvAt[r] + to : call.sendAt[r] + call.rank * call.sendStride;
	Span s = span_of(call.bytes, (u64)from, (u64)call.recvAt[r] + to);
	char* at = call.recv + to;
	poison_packs(at + s.head, s.packs);
	u32 unit = unit_of(from, call.recvAt[r] + to, call.bytes);
	if (unit == 8) poison_rest<u64>(s, at);
	else if (unit == 4) poison_rest<u32>(s, at);
	else if (unit == 2) poison_rest<u16>(s, at);
	else poison_rest<u8>(s, at);
}

// bulk_copy implements AllGather, Broadcast and AllToAll. Each rank copies its parts to its peers and to
// itself. In place, its own part is already there.
template <int W>
DEVICE void bulk_copy(const Bulk& call) {
	Prologue prologue = begin(call);
	bool ok = await_peers(call, prologue);
	if (ok) {
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
		ok = await_done(call, prologue.epoch());
	}
	if (!ok) retract_header(call, prologue);
	for (u32 r = 0; !ok && r < call.ranks; r++)
		if (call.recvFrom >> r & 1) poison_part(call, r);
	count(call, prologue.epoch());
}
