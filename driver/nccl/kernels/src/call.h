// A call as a kernel gets it, and the memory that ranks write to each other. The structures are those
// of arguments.go; a test compares their sizes and offsets.
#pragma once
#include <device.h>

enum { MaxRanks = 8, MaxBlocks = 256, MaxBulkBlocks = 128 };

// Call says what a rank does in a collective. A call moves parts of the same size: sums take part r *
// sendStride of the input for rank r, copies put part r of rank r at r * recvStride. What small messages
// need comes first: the constant cache, which holds the arguments, is cold in every launch.
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

// Kernels of any reduction also read these parts of call.op. Order: Tree combines ranks as a tree, and
// Rounded also rounds the results of 16-bit types every time. Type: that of the elements.
enum Order : u32 { Tree = 8, Rounded = 16 };
enum Type : u32 { TypeUnit = 32, TypeF32 = 0, TypeF64, TypeF16, TypeBF16, TypeI8, TypeU8, TypeI32, TypeI64 };

// Fault says why a call ended without a result.
enum Fault { None, Aborted, TimedOut, Diverged };

// Report is what a rank's kernels and its host tell each other, in host memory. The first thread that meets
// a fault writes the first fields, and fault last. The host writes the field end to end kernels that run
// and later ones. That takes no call of CUDA, so it waits for nothing.
struct Report {
	u64 digest, theirs;  // Diverged: of this rank and of the peer
	u64 epoch;
	u32 ranks;  // TimedOut: the set of those that did not come; Diverged: the peer
	u32 fault;
	u32 end;
	u32 unused[7];
};

// State is what a block reads when it begins, in one load. There are several states, so that not all blocks
// read the same one.
struct alignas(16) State {
	// The number of calls so far.
	u64 epoch;
	// The fault word: the first fault of the rank. It ends kernels that run, and later ones do nothing,
	// forever.
	u32 fault;
	u32 unused;
};

// Control is what a rank's kernels keep between calls. Nobody else writes it. Block b of a grid of g reads
// entry b and counts in the states b, b+g, b+2g, ...: so no block waits for another. There are as many as
// two blocks of the smallest grids have threads: more states cost small calls 0.1 us.
struct Control {
	State states[MaxBlocks];
};

// Header is what a rank tells each other rank in every call. Both halves carry the epoch, so that they need
// not arrive together.
struct Header {
	u64 low, high;
	u64 unused[14];
};

// Exchange is the memory of a rank that others write. Calls of odd and of even epochs write to different
// halves: a rank that is one call ahead disturbs nobody, and none can be two ahead, since each call waits
// for all headers.
struct Exchange {
	Control control;
	alignas(4096) Header headers[2][MaxRanks];
	// done says that a block of a bulk kernel of a rank no longer needs this rank's memory.
	alignas(4096) u64 done[MaxBulkBlocks][MaxRanks];
};

enum : u64 {
	ExchangeBytes = 32 << 20,
	HalfBytes = (ExchangeBytes - sizeof(Exchange)) / 2 / 4096 * 4096,
};

DEVICE Exchange* of(const Call& call, u32 rank) { return (Exchange*)call.exchange[rank]; }
DEVICE Exchange* own(const Call& call) { return of(call, call.rank); }
