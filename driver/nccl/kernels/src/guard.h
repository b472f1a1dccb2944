// Waits with a timeout, and the comparison of calls between ranks.
#pragma once
#include <exchange.h>

// Guard limits the waits of one thread. It polls the clock and the fault word of this rank, which other
// threads may set. It polls Report.end less often, because that is in host memory.
struct Guard {
	u32 polls = 0;
	u64 since = 0;
};

// state returns the state of a block.
template <class C>
DEVICE State* state(const C& call, u32 block) { return &own(call)->control.states[block]; }

// fail writes a fault to all states of a rank, and reports whether it is the first one. Another thread,
// or the host, may have set the first state before. The fault ends the waits of the rank's other threads
// and keeps later kernels from sending and receiving.
NOINLINE bool fail(State* states, u32 fault) {
	bool first = dev::swap_if(&states[0].fault, None, fault) == None;
#pragma unroll 1
	for (u32 b = 1; b < MaxBlocks; b++) dev::store_relaxed(&states[b].fault, fault);
	return first;
}

// raise sets the fault word. It reports the fault to the host if it is the first one.
template <class C>
DEVICE void raise(const C& call, u64 epoch, Fault fault, u32 ranks, u64 theirs) {
	if (!fail(state(call, 0), fault)) return;
	Report* report = call.report;
	report->digest = call.digest;
	report->theirs = theirs;
	report->epoch = epoch;
	report->ranks = ranks;
	dev::fence();
	*(volatile u32*)&report->fault = fault;
	dev::fence();
}

// half returns one half of a header: 32 bits of the digest and 32 bits of the epoch.
DEVICE u64 half(u64 digest, u64 epoch) { return digest << 32 | (epoch & 0xffffffff); }

// header_arrived reports whether one half of a header has arrived. The other half may be in flight, or
// retracted by a rank whose call failed.
DEVICE bool header_arrived(const Header* h, u64 epoch) { return (u32)dev::load_relaxed(&h->high) == (u32)epoch; }

// missing returns the set of ranks whose header has not arrived.
template <class C>
DEVICE u32 missing(const C& call, u64 epoch) {
	u32 set = 0;
	for (u32 r = 0; r < call.ranks; r++)
		if (r != call.rank && !header_arrived(&own(call)->headers[epoch & 1][r], epoch)) set |= 1u << r;
	return set;
}

enum { PollsOfDevice = 8 * dev::PollsAtOnce };

// ended reports whether the host has set end to stop this rank's kernels. If so, it sets the fault word.
template <class C>
DEVICE bool ended(const C& call, u32 end) {
	if (end == 0) return false;
	fail(state(call, 0), Aborted);
	return true;
}

// keep_waiting runs between two polls, and reports whether to poll again.
template <class C>
DEVICE bool keep_waiting(Guard& guard, const C& call, u64 epoch) {
	dev::pause();
	if (++guard.polls % dev::PollsAtOnce != 0) return true;
	if (dev::load_relaxed(&state(call, dev::block())->fault) != None) return false;
	if (guard.polls % PollsOfDevice == 0 && ended(call, dev::load_relaxed(&call.report->end))) return false;
	u64 now = dev::clock();
	if (guard.since == 0) guard.since = now;
	if (now - guard.since < call.timeout) return true;
	raise(call, epoch, TimedOut, missing(call, epoch), 0);
	return false;
}

// post_header sends rank r the epoch and digest of this call.
template <class C>
DEVICE void post_header(const C& call, u32 r, u64 epoch) {
	Header* h = &of(call, r)->headers[epoch & 1][call.rank];
	dev::store_relaxed(&h->low, half(call.digest, epoch));
	dev::store_relaxed(&h->high, half(call.digest >> 32, epoch));
}

// await_header waits for the header of rank r and compares its digest. It returns false if the header
// does not arrive or belongs to another call. With Acquire, writes of r before its header are visible
// afterwards.
template <bool Acquire, class C>
DEVICE bool await_header(const C& call, u32 r, u64 epoch) {
	const Header* h = &own(call)->headers[epoch & 1][r];
	Guard guard;
	u64 low, high;
	do {
		low = Acquire ? dev::acquire(&h->low) : dev::load_relaxed(&h->low);
		high = Acquire ? dev::acquire(&h->high) : dev::load_relaxed(&h->high);
		if ((u32)low == (u32)epoch && (u32)high == (u32)epoch) {
			u64 theirs = low >> 32 | high >> 32 << 32;
			if (theirs == call.digest) return true;
			raise(call, epoch, Diverged, r, theirs);
			return false;
		}
	} while (keep_waiting(guard, call, epoch));
	return false;
}

// Prologue holds the state at the start of a call: the epoch of the previous call, the fault word and
// State.hints.
// The load is still in flight when begin returns. The first use of either field waits for it, so callers
// should load the input before.
struct Prologue {
	u64 last;
	u32 fault, hints;

	MEMBER u64 epoch() const { return last + 1; }
	MEMBER bool ok() const { return fault == None; }
};

// begin waits for previous work on the stream. All threads call it first. Every warp loads the state of
// its block from the L2 cache, where eight states share a line. One thread of the block prefetches it.
// All fields take one load.
template <class C>
DEVICE Prologue begin(const C& call) {
	const State* e = state(call, dev::block());
	if (dev::thread() == 0) dev::fetch(e);
	dev::await_previous();
	Pack both = dev::load_relaxed((const Pack*)e);
	return {both.a, (u32)both.b, (u32)(both.b >> 32)};
}

// count writes the epoch to the states of this block. All threads of the block must have read the
// previous epoch before.
template <class C>
DEVICE void count(const C& call, u64 epoch) {
	for (u32 i = dev::block() + dev::thread() * dev::blocks(); i < MaxBlocks; i += dev::threads() * dev::blocks())
		dev::store_relaxed(&state(call, i)->epoch, epoch);
}

// finish waits for the threads of the block and then calls count.
template <class C>
DEVICE void finish(const C& call, u64 epoch) {
	dev::sync_block();
	count(call, epoch);
}

// Poison fills the output of a failed call. With all bits set, it is NaN in every floating-point type and
// -1 in signed integers. Kernels can write it without knowing the type.
enum : u64 { Poison = ~0ull };
