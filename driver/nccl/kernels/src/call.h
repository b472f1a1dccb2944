// A call as a kernel gets it, and the memory that ranks write to each other. The structures are those
// of call.go; a test compares their sizes and offsets.
#pragma once
#include <device.h>

enum { MaxRanks = 8, MaxBlocks = 256, MaxBulkBlocks = 128 };

// Call says what a rank does in a collective. A call moves parts of the same size: sums take part
// r * sendStride of the input for rank r, copies put part r of rank r at r * recvStride. What small
// messages need comes first: the processor's cache of arguments is cold in every launch.
struct Call {
	u32 rank, ranks;
	// Sets of ranks, a bit each: whom this rank sends to, and whose parts it takes.
	u32 sendTo, recvFrom;
	// The reduction, and what an average is divided by (else 1).
	u32 op, divisor;
	// What stands for the call: equal on all ranks, or the call fails.
	u64 digest;
	// This rank's own buffers.
	const char* send;
	char* recv;
	// A part, in bytes, and the distance of parts.
	u64 bytes, sendStride, recvStride;
	// The exchange memory of each rank as mapped here.
	char* exchange[MaxRanks];
	// How long peers are waited for, in nanoseconds, and where a fault is told to the host.
	u64 timeout;
	struct Report* report;
};

// Bulk is a call whose buffers peers read and write: those of each rank as mapped here.
struct Bulk : Call {
	const char* sendAt[MaxRanks];
	char* recvAt[MaxRanks];
};

enum Op { Sum, Min, Max, Prod };

// Kernels of any reduction look at more of what call.op says. Order: ranks are combined as a tree, and the
// results of 16-bit types rounded every time if Rounded is there, too. Type: that of the elements.
enum Order : u32 { Tree = 8, Rounded = 16 };
enum Type : u32 { TypeUnit = 32, TypeF32 = 0, TypeF64, TypeF16, TypeBF16, TypeI8, TypeU8, TypeI32, TypeI64 };

// Fault says why a call ended without a result.
enum Fault { None, Aborted, TimedOut, Diverged };

// Report is what a rank's kernels and its host tell each other, in memory of the host. What the first
// thread that meets a fault says begins it; fault is written last. The host writes end to end what runs
// and is yet to come: without a call of CUDA's, so it waits for nothing.
struct Report {
	u64 digest, theirs;  // Diverged: of this rank and of the peer
	u64 epoch;
	u32 ranks;  // TimedOut: the set of those that did not come; Diverged: the peer
	u32 fault;
	u32 end;
	u32 unused[7];
};

// State is what a block reads when it begins: both words lie side by side, so that neither waits for the
// other, and not all blocks ask for the same one.
struct State {
	// The number of calls so far.
	u64 epoch;
	// The first fault of the rank. It ends what runs, and what comes later does nothing, forever.
	u32 fault;
	u32 unused;
};

// Control is what a rank's kernels keep between calls. Nobody else writes it. Block b of a grid of g reads
// entry b and counts in the states b, b+g, b+2g, ...: so no block waits for another. There are as many as
// two blocks of the smallest grids have threads: more states cost small calls 0.1 us.
struct Control {
	State states[MaxBlocks];
};

// Header is what a rank tells each other rank in every call, in both halves with the epoch, so that
// it need not arrive at once.
struct Header {
	u64 low, high;
	u64 unused[14];
};

// Exchange is the memory of a rank that others write. What calls of odd epochs write is apart from that
// of even ones: a rank that is one call ahead disturbs nobody, and none can be two ahead, since
// each call waits for all headers.
struct Exchange {
	Control control;
	alignas(4096) Header headers[2][MaxRanks];
	// done tells that a block of a bulk kernel of a rank is through with this rank's memory.
	alignas(4096) u64 done[MaxBulkBlocks][MaxRanks];
};

enum : u64 {
	ExchangeBytes = 32 << 20,
	HalfBytes = (ExchangeBytes - sizeof(Exchange)) / 2 / 4096 * 4096,
};

DEVICE Exchange* of(const Call& call, u32 rank) { return (Exchange*)call.exchange[rank]; }
DEVICE Exchange* own(const Call& call) { return of(call, call.rank); }
