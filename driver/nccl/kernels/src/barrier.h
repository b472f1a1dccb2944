// Barriers between blocks of all ranks. Kernels whose ranks access each other's buffers begin and end with
// one.
#pragma once
#include <guard.h>

// await_peers waits until all ranks have arrived. Their input is then ready and their output may be
// written. All threads of all blocks call it. After a fault it sends no headers. It returns false if the
// host has stopped the kernels by the fault word of the first state. This rank must not access memory of
// peers then, because peers whose call has failed may use their buffers again.
template <class C>
DEVICE bool await_peers(const C& call, const Prologue& prologue) {
	u32 r = dev::thread(), end = 0;
	u64 epoch = prologue.epoch();
	bool ok = prologue.ok();
	if (ok && r == call.rank) end = dev::load_relaxed(&state(call, 0)->fault);
	bool peer = ok && r < call.ranks && r != call.rank;
	if (peer && dev::block() == 0) {
		Header* h = &of(call, r)->headers[epoch & 1][call.rank];
		dev::release(&h->low, half(call.digest, epoch));
		dev::store_relaxed(&h->high, half(call.digest >> 32, epoch));
	}
	return dev::all_block(ok && (!peer || await_header<true>(call, r, epoch)) && !ended(call, end));
}

// retract_header overwrites the headers that await_peers has sent, on the same threads. A peer that
// arrives later must not continue, because this rank may use its buffers again after the failure. The
// half that missing reads is kept.
template <class C>
DEVICE void retract_header(const C& call, const Prologue& prologue) {
	u32 r = dev::thread();
	if (!prologue.ok() || dev::block() != 0 || r >= call.ranks || r == call.rank) return;
	dev::store_relaxed(&of(call, r)->headers[prologue.epoch() & 1][call.rank].low, half(0, ~prologue.epoch()));
}

// done waits until the same block on rank r has ended.
template <class C>
DEVICE bool done(const C& call, u32 r, u64 epoch) {
	Guard guard;
	while (dev::acquire(&own(call)->done[dev::block()][r]) < epoch)
		if (!keep_waiting(guard, call, epoch)) return false;
	return true;
}

// await_done waits until the same block of every rank has ended. No rank needs this rank's memory for
// this block then. It returns false if a block does not end.
template <class C>
DEVICE bool await_done(const C& call, u64 epoch) {
	dev::sync_block();
	u32 r = dev::thread();
	bool came = true;
	if (r < call.ranks && r != call.rank) {
		dev::release(&of(call, r)->done[dev::block()][call.rank], epoch);
		came = done(call, r, epoch);
	}
	return dev::all_block(came);
}
