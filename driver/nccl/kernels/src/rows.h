// Rows kernels exchange parts of different sizes: a gather copies several tensors in one launch, and a
// scatter reduces one. As for other collectives, line kernels copy data through exchange memory, and bulk
// kernels access symmetric buffers of peers.
#pragma once
#include <bulk.h>
#include <line.h>

// RowSteps has the members that line kernels of rows share.
template <class C, int W>
struct RowSteps {
	typedef Pack Part;
	const C& call;
	Worker<Pack> w;
	u32 bytes = ~0u;  // poison_parts computes the sizes
	u32 stride;

	MEMBER RowSteps(const C& call) : call(call), w(worker<Pack>(call, nullptr)) {
		stride = (u32)call.chunks * Chunk<Pack>::Bytes;
	}

	MEMBER bool has(u32 chunk) const { return chunk < call.chunks; }

	// await receives a chunk of a set of ranks. It returns false if the wait must end.
	MEMBER bool await(u32 chunk, u32 from, Pack* got) const {
		const char* lines = slot(call, call.rank, w, 0) + chunk * Chunk<Pack>::Bytes;
		return collect<Pack, W>(call, w, from, lines, stride, got);
	}
};

// GatherSteps implements gathers in lines.
template <int W>
struct GatherSteps : RowSteps<Gather, W> {
	MEMBER GatherSteps(const Gather& call) : RowSteps<Gather, W>(call) {}

	// tensor_of returns the tensor of a chunk.
	MEMBER const Tensor& tensor_of(u32 chunk) const {
		u32 t = 0;
#pragma unroll 1
		while (t + 1 < this->call.tensors && chunk >= this->call.tensor[t + 1].first) t++;
		return this->call.tensor[t];
	}

	template <bool Ask>
	MEMBER Pack send(u32 chunk) const {
		const Gather& call = this->call;
		const Tensor& t = tensor_of(chunk);
		u32 at = chunk - (u32)t.first, bytes = (u32)t.parts.bytes[call.rank];
		Pack mine = read(t.send, bytes, unit<Pack>(t.send), this->w, at);
		if (Ask && !ok(this->w) || !holds<Pack>(bytes, at)) return mine;
#pragma unroll
		for (int k = 1; k < W; k++) {
			u32 r = (call.rank + k) % W;
			if (r < call.ranks) ::send(call, this->w, r, call.rank * this->stride, chunk, mine);
		}
		return mine;
	}
	MEMBER bool recv(u32 chunk, Pack mine) const {
		const Gather& call = this->call;
		const Tensor& t = tensor_of(chunk);
		u32 at = chunk - (u32)t.first, from = 0;
		Pack got[W];
#pragma unroll
		for (int r = 0; r < W; r++)
			if (r < call.ranks && holds<Pack>((u32)t.parts.bytes[r], at)) from |= 1u << r;
		if (!this->await(chunk, peers(call, from), got)) return false;
#pragma unroll
		for (int r = 0; r < W; r++) {
			if (!(from >> r & 1)) continue;
			char* to = t.recv + t.parts.at[r];
			write(to, (u32)t.parts.bytes[r], unit<Pack>(to), this->w, at, r == call.rank ? mine : got[r]);
		}
		return true;
	}
	// poison poisons the chunks of a warp in all tensors, or up to most bytes of the parts of the first
	// tensor.
	MEMBER void poison(u32 chunk, u32 step, u32 most) const {
		const Gather& call = this->call;
		for (u32 i = 0; i < (most < 16 ? 1 : call.tensors); i++) {
			const Tensor& t = call.tensor[i];
			u32 first = (chunk + step - (u32)t.first % step) % step;
			for (u32 r = 0; r < call.ranks; r++) {
				u32 bytes = (u32)t.parts.bytes[r];
				poison_chunks(t.recv + t.parts.at[r], 0, 1, bytes < most ? bytes : most, Chunk<Pack>::Data, first, step);
			}
		}
	}
};

// ScatterSteps implements scatters in lines.
template <class N, int W>
struct ScatterSteps : RowSteps<Scatter, W> {
	MEMBER ScatterSteps(const Scatter& call) : RowSteps<Scatter, W>(call) {}

	MEMBER Pack part(u32 r, u32 chunk) const {
		const char* from = this->call.send + this->call.parts.at[r];
		return read(from, r < this->call.ranks ? (u32)this->call.parts.bytes[r] : 0, unit<Pack>(from), this->w, chunk);
	}

	// send sends each peer a chunk of its part. All parts are loaded before the first store.
	template <bool Ask>
	MEMBER Pack send(u32 chunk) const {
		const Scatter& call = this->call;
		Pack parts[W], mine = part(call.rank, chunk);
#pragma unroll
		for (int k = 1; k < W; k++) parts[k] = part((call.rank + k) % W, chunk);
		if (Ask && !ok(this->w)) return mine;
#pragma unroll
		for (int k = 1; k < W; k++) {
			u32 r = (call.rank + k) % W;
			if (r < call.ranks && holds<Pack>((u32)call.parts.bytes[r], chunk))
				::send(call, this->w, r, call.rank * this->stride, chunk, parts[k]);
		}
		return mine;
	}
	MEMBER bool recv(u32 chunk, Pack mine) const {
		const Scatter& call = this->call;
		u32 bytes = (u32)call.parts.bytes[call.rank];
		Pack got[W];
		if (!holds<Pack>(bytes, chunk)) return true;
		if (!this->await(chunk, peers(call, (1u << call.ranks) - 1), got)) return false;
		write(call.recv, bytes, unit<Pack>(call.recv), this->w, chunk, total<N, W>(call, mine, got));
		return true;
	}
	MEMBER void poison(u32 chunk, u32 step, u32 most) const {
		u32 bytes = (u32)this->call.parts.bytes[this->call.rank];
		poison_chunks(this->call.recv, 0, 1, bytes < most ? bytes : most, Chunk<Pack>::Data, chunk, step);
	}
};

// load_pack loads a pack from an address of any alignment.
DEVICE Pack load_pack(const char* at, u32 unit) {
	if (unit == sizeof(Pack)) return dev::load_once((const Pack*)at);
	return {load_odd(at, 8, unit), load_odd(at + 8, 8, unit)};
}

// push_tensor copies this rank's part of a tensor to the outputs of all ranks. The packs are aligned in
// the output. In place, the own part is already there.
template <int W, int U>
DEVICE void push_tensor(const Gather& call, const Tensor& t) {
	u64 to = t.parts.at[call.rank];
	Span s = span_of(t.parts.bytes[call.rank], (u64)t.recv + to, (u64)t.recv + to);
	u32 align = unit<Pack>(t.send + s.head), all = (1u << call.ranks) - 1;
	u32 set = t.send == t.recv + to ? peers(call, all) : all;
	for (u64 i = index(); i < s.packs; i += stride() * U) {
		Pack got[U];
#pragma unroll
		for (int u = 0; u < U; u++)
			if (i + u * stride() < s.packs) got[u] = load_pack(t.send + s.head + 16 * (i + u * stride()), align);
#pragma unroll
		for (int u = 0; u < U; u++)
			if (i + u * stride() < s.packs)
#pragma unroll
				for (int k = 0; k < W; k++) {
					u32 r = (call.rank + k) % W;
					if (set >> r & 1) dev::store_once((Pack*)(t.recvAt[r] + to + s.head) + i + u * stride(), got[u]);
				}
	}
#pragma unroll 1
	for (u64 i = index(); i < s.rest(); i += stride())
		for (u32 r = 0; r < call.ranks; r++)
			if (set >> r & 1) *(volatile u8*)(t.recvAt[r] + to + s.beyond(i)) = (u8)t.send[s.beyond(i)];
}

// poison_tensor poisons the parts of a tensor, each in the same packs and blocks as the rank that writes it.
DEVICE void poison_tensor(const Gather& call, const Tensor& t) {
	for (u32 r = 0; r < call.ranks; r++) {
		char* at = t.recv + t.parts.at[r];
		Span s = span_of(t.parts.bytes[r], (u64)at, (u64)at);
		poison_packs(at + s.head, s.packs);
		poison_rest<u8>(s, at);
	}
}

// bulk_gather copies this rank's part of each tensor to all ranks.
template <int W>
DEVICE void bulk_gather(const Gather& call) {
	Prologue prologue = begin(call);
	bool ok = await_peers(call, prologue);
	if (ok) {
		for (u32 t = 0; t < call.tensors; t++) push_tensor<W, 4>(call, call.tensor[t]);
		ok = await_done(call, prologue.epoch());
	}
	if (!ok) retract_header(call, prologue);
	for (u32 t = 0; !ok && t < call.tensors; t++) poison_tensor(call, call.tensor[t]);
	count(call, prologue.epoch());
}

// bulk_scatter reduces this rank's part of all inputs.
template <class N, int W>
DEVICE void bulk_scatter(const Scatter& call) {
	Prologue prologue = begin(call);
	u64 part = call.parts.at[call.rank], size = element_bytes<N>(call);
	Span s = span_of(call.parts.bytes[call.rank], (u64)call.send + part, (u64)call.recv);
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
		for (u64 i = index() * size; i < s.rest(); i += stride() * size) put_own<N>(call, s.beyond(i), Poison);
	}
	count(call, prologue.epoch());
}
