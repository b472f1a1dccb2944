// The memory through which ranks exchange data, whatever they compute. The arguments of a kernel that
// communicates have these fields, at any offset: rank, ranks, digest, timeout, report and exchange, which
// is an array of each rank's exchange memory.
#pragma once
#include <device.h>

enum { MaxRanks = 8, MaxBlocks = 256, MaxBulkBlocks = 128 };

// Fault is the reason why a call ended without a result.
enum Fault { None, Aborted, TimedOut, Diverged };

// Report connects the kernels of a rank with its host. It is in pinned host memory. The first thread
// that detects a fault writes the fields before fault, and then fault. The host sets end to stop running
// and later kernels. That cannot block, because it takes no CUDA call.
struct Report {
	u64 digest, theirs;  // after Diverged: the digests of this rank and of the peer
	u64 epoch;
	u32 ranks;  // after TimedOut: the set of missing ranks; after Diverged: the peer
	u32 fault;
	u32 end;
	u32 unused[7];
};

// State holds what a block reads at its start, in one load. There are several states to spread the loads
// of all blocks.
struct alignas(16) State {
	// The number of completed calls.
	u64 epoch;
	// The fault word holds the first fault of the rank, and is never reset. It ends running kernels, and
	// makes later kernels return at once.
	u32 fault;
	// How many rows of each rank the last dispatch in lines received. Only that kernel and a combine know the
	// format.
	u32 hints;
};

// Control holds the state of a rank's kernels between calls. Only these kernels write it. Block b of a
// grid of g blocks reads state b and updates the states b, b+g, b+2g, ..., so no block waits for
// another. Two blocks of the smallest grids have as many threads as there are states. More states would
// make small calls 0.1 us slower.
struct Control {
	State states[MaxBlocks];
};

// Header identifies a call to another rank. Both halves contain the epoch, because they may arrive at
// different times.
struct Header {
	u64 low, high;
	u64 unused[14];
};

// Exchange is the memory of a rank that its peers write. Calls with odd and with even epochs use
// different halves. A rank that is one call ahead therefore overwrites no data in use. No rank can be
// two calls ahead, because each call waits for all headers.
struct Exchange {
	Control control;
	alignas(4096) Header headers[2][MaxRanks];
	// Peers write done. done[b][r] is the epoch of the last bulk call in which block b of rank r no longer
	// needs the memory of this rank.
	alignas(4096) u64 done[MaxBulkBlocks][MaxRanks];
};

enum : u64 {
	ExchangeBytes = 32 << 20,
	HalfBytes = (ExchangeBytes - sizeof(Exchange)) / 2 / 4096 * 4096,
};

// of returns the exchange memory of a rank, and own that of this rank.
template <class C>
DEVICE Exchange* of(const C& call, u32 rank) { return (Exchange*)call.exchange[rank]; }
template <class C>
DEVICE Exchange* own(const C& call) { return of(call, call.rank); }
