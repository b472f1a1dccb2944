// Nothing waits forever, and nothing that differs is taken for equal.
#pragma once
#include <call.h>

// Guard bounds the waits of one thread. It looks at the fault word of its rank, which other threads set,
// and at the clock. It looks less often at the word by which the host ends kernels, since that lies in host
// memory.
struct Guard {
	u32 looks = 0;
	u64 since = 0;
};

DEVICE State* state(const Call& call, u32 block) { return &own(call)->control.states[block]; }

// fail writes a fault to all states of a rank, and reports whether it was the first: the host, which writes
// to the first state only, may have been earlier. That ends the waits of the rank's other threads, and
// later kernels send and take nothing.
NOINLINE bool fail(State* states, u32 fault) {
	bool first = dev::swap_if(&states[0].fault, None, fault) == None;
#pragma unroll 1
	for (u32 b = 1; b < MaxBlocks; b++) dev::store_relaxed(&states[b].fault, fault);
	return first;
}

// raise writes the fault word, and reports to the host if this was the first fault.
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

// came looks at one half: the other one may still be in flight, or taken back by a rank that came and gave
// up.
DEVICE bool came(const Header* h, u64 epoch) { return (u32)dev::load_relaxed(&h->high) == (u32)epoch; }

// missing is the set of ranks whose header has not come.
DEVICE u32 missing(const Call& call, u64 epoch) {
	u32 set = 0;
	for (u32 r = 0; r < call.ranks; r++)
		if (r != call.rank && !came(&own(call)->headers[epoch & 1][r], epoch)) set |= 1u << r;
	return set;
}

enum { LooksNearby = 8 * dev::LooksAtOnce };

// ended reports whether the host has ended this rank's kernels, and then writes the fault word.
DEVICE bool ended(const Call& call, u32 end) {
	if (end == 0) return false;
	fail(state(call, 0), Aborted);
	return true;
}

// go_on is asked between two looks, and reports whether to look again.
DEVICE bool go_on(Guard& guard, const Call& call, u64 epoch) {
	dev::pause();
	if (++guard.looks % dev::LooksAtOnce != 0) return true;
	if (dev::load_relaxed(&state(call, dev::block())->fault) != None) return false;
	if (guard.looks % LooksNearby == 0 && ended(call, dev::load_relaxed(&call.report->end))) return false;
	u64 now = dev::clock();
	if (guard.since == 0) guard.since = now;
	if (now - guard.since < call.timeout) return true;
	raise(call, epoch, TimedOut, missing(call, epoch), 0);
	return false;
}

// greet tells rank r which call this is.
DEVICE void greet(const Call& call, u32 r, u64 epoch) {
	Header* h = &of(call, r)->headers[epoch & 1][call.rank];
	dev::store_relaxed(&h->low, half(call.digest, epoch));
	dev::store_relaxed(&h->high, half(call.digest >> 32, epoch));
}

// meet waits until rank r has come to this call, and compares. It returns false if it has not, or
// came to another call. With Acquire, what r wrote before it came can be read then.
template <bool Acquire>
DEVICE bool meet(const Call& call, u32 r, u64 epoch) {
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
	} while (go_on(guard, call, epoch));
	return false;
}

// Begun is what the threads of a block find: the epoch of the call before, and the first fault of all
// before. The load is still in flight when begin returns, and the first use of either waits for it: so
// input is loaded first.
struct Begun {
	u64 last;
	u32 fault;

	MEMBER u64 epoch() const { return last + 1; }
	MEMBER bool well() const { return fault == None; }
};

// begin waits for the work before. All threads call it first. Every warp asks the L2 cache for its block's
// state, and eight states share a line: so both words are one load, and one thread of a block has it fetched.
DEVICE Begun begin(const Call& call) {
	const State* e = state(call, dev::block());
	if (dev::thread() == 0) dev::fetch(e);
	dev::await_previous();
	Pack both = dev::load_relaxed((const Pack*)e);
	return {both.a, (u32)both.b};
}

// count notes that a block has ended, all of whose threads have read the epoch.
DEVICE void count(const Call& call, u64 epoch) {
	for (u32 i = dev::block() + dev::thread() * dev::blocks(); i < MaxBlocks; i += dev::threads() * dev::blocks())
		dev::store_relaxed(&state(call, i)->epoch, epoch);
}

DEVICE void finish(const Call& call, u64 epoch) {
	dev::sync_block();
	count(call, epoch);
}

// What a call that fails leaves undone is marked by bits that are all 1: a NaN of any floating type, a -1
// of others. So it is not taken for a result, and no type needs to be known.
enum : u64 { Mark = ~0ull };
