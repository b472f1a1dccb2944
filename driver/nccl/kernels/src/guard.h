// Bounded waits, and comparison of calls.
#pragma once
#include <call.h>

// Guard bounds the waits of one thread. It polls the fault word of its rank, which other threads set, and
// the clock. It polls the word by which the host ends kernels less often, since that lies in host memory.
struct Guard {
	u32 polls = 0;
	u64 since = 0;
};

DEVICE State* state(const Call& call, u32 block) { return &own(call)->control.states[block]; }

// fail writes a fault to all states of a rank, and reports whether it was the first one: the host, which
// writes to the first state only, may have been earlier. This ends the waits of the rank's other threads
// and keeps later kernels from sending and receiving.
NOINLINE bool fail(State* states, u32 fault) {
	bool first = dev::swap_if(&states[0].fault, None, fault) == None;
#pragma unroll 1
	for (u32 b = 1; b < MaxBlocks; b++) dev::store_relaxed(&states[b].fault, fault);
	return first;
}

// raise writes the fault word, and reports the fault to the host if it is the first.
DEVICE void raise(const Call& call, u64 epoch, Fault fault, u32 ranks, u64 theirs) {
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

DEVICE u64 half(u64 digest, u64 epoch) { return digest << 32 | (epoch & 0xffffffff); }

// header_arrived tests one half of a header: the other half may be in flight, or retracted by a rank that
// arrived and gave up.
DEVICE bool header_arrived(const Header* h, u64 epoch) { return (u32)dev::load_relaxed(&h->high) == (u32)epoch; }

// missing returns the set of ranks whose header has not arrived.
DEVICE u32 missing(const Call& call, u64 epoch) {
	u32 set = 0;
	for (u32 r = 0; r < call.ranks; r++)
		if (r != call.rank && !header_arrived(&own(call)->headers[epoch & 1][r], epoch)) set |= 1u << r;
	return set;
}

enum { PollsOfDevice = 8 * dev::PollsAtOnce };

// ended reports whether the host has ended this rank's kernels, and sets the fault word if so.
DEVICE bool ended(const Call& call, u32 end) {
	if (end == 0) return false;
	fail(state(call, 0), Aborted);
	return true;
}

// keep_waiting is called between two polls, and reports whether to poll again.
DEVICE bool keep_waiting(Guard& guard, const Call& call, u64 epoch) {
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
DEVICE void post_header(const Call& call, u32 r, u64 epoch) {
	Header* h = &of(call, r)->headers[epoch & 1][call.rank];
	dev::store_relaxed(&h->low, half(call.digest, epoch));
	dev::store_relaxed(&h->high, half(call.digest >> 32, epoch));
}

// await_header waits for the header of rank r and compares it. It returns false if the header does not
// arrive or belongs to another call. With Acquire, writes of r before its header are visible afterwards.
template <bool Acquire>
DEVICE bool await_header(const Call& call, u32 r, u64 epoch) {
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

// Prologue holds the state at the start of a call: the epoch of the previous call, and the first fault so
// far. The load is still in flight when begin returns, and the first use of either field waits for it, so
// load the input first.
struct Prologue {
	u64 last;
	u32 fault;

	MEMBER u64 epoch() const { return last + 1; }
	MEMBER bool ok() const { return fault == None; }
};

// begin waits for previous work on the stream. All threads call it first. Every warp loads its block's
// state from the L2 cache, and eight states share a line; both fields are one load, which one thread of
// the block prefetches.
DEVICE Prologue begin(const Call& call) {
	const State* e = state(call, dev::block());
	if (dev::thread() == 0) dev::fetch(e);
	dev::await_previous();
	Pack both = dev::load_relaxed((const Pack*)e);
	return {both.a, (u32)both.b};
}

// count counts the call for a block all of whose threads have read the epoch.
DEVICE void count(const Call& call, u64 epoch) {
	for (u32 i = dev::block() + dev::thread() * dev::blocks(); i < MaxBlocks; i += dev::threads() * dev::blocks())
		dev::store_relaxed(&state(call, i)->epoch, epoch);
}

DEVICE void finish(const Call& call, u64 epoch) {
	dev::sync_block();
	count(call, epoch);
}

// Poison fills the output of a call that fails: all bits set, which is NaN in every floating-point type
// and -1 in others. So it is not taken for a result, and the type need not be known.
enum : u64 { Poison = ~0ull };
