// Arguments of kernels, and the memory through which ranks exchange data. The structures match those of
// arguments.go; a test compares their sizes and offsets.
#pragma once
#include <device.h>

enum { MaxRanks = 8, MaxBlocks = 256, MaxBulkBlocks = 128 };

// Call describes a collective from the view of one rank. All parts have the same size: sums read part r
// of the input at r * sendStride for rank r, copies write the part of rank r at r * recvStride. Fields
// that small messages need come first: the constant cache, which holds the arguments, is cold in every
// launch.
struct Call {
	u32 rank, ranks;
	// Bit sets of ranks: the ranks this rank sends to, and those whose parts it receives.
	u32 sendTo, recvFrom;
	// The reduction, and the divisor of an average (else 1).
	u32 op, divisor;
	// Identifies the call: equal on all ranks, or the call fails.
	u64 digest;
	// This rank's own buffers.
	const char* send;
	char* recv;
	// The size of a part in bytes, and the distances between parts.
	u64 bytes, sendStride, recvStride;
	// The exchange memory of each rank as mapped here.
	char* exchange[MaxRanks];
	// How long to wait for peers, in nanoseconds, and where to report a fault to the host.
	u64 timeout;
	struct Report* report;
};

// Bulk is a call whose buffers peers access: those of each rank as mapped here.
struct Bulk : Call {
	const char* sendAt[MaxRanks];
	char* recvAt[MaxRanks];
};

enum Op { Sum, Min, Max, Prod };

// Kernels of any reduction also read these fields of call.op. Order: Tree combines ranks as a tree, and
// Rounded also rounds intermediate results of 16-bit types. Type: the element type.
enum Order : u32 { Tree = 8, Rounded = 16 };
enum Type : u32 { TypeUnit = 32, TypeF32 = 0, TypeF64, TypeF16, TypeBF16, TypeI8, TypeU8, TypeI32, TypeI64 };

// Fault is the reason why a call ended without a result.
enum Fault { None, Aborted, TimedOut, Diverged };

// Report lies in host memory, and connects the kernels of a rank with its host. The first thread that
// meets a fault writes the first fields, and fault last. The host writes end to end running and later
// kernels. That takes no CUDA call, so it cannot block.
struct Report {
	u64 digest, theirs;  // Diverged: of this rank and of the peer
	u64 epoch;
	u32 ranks;  // TimedOut: the set of those that did not come; Diverged: the peer
	u32 fault;
	u32 end;
	u32 unused[7];
};

// State is what a block reads at its start, in one load. There are several states, so that not all blocks
// read the same one.
struct alignas(16) State {
	// The number of completed calls.
	u64 epoch;
	// The fault word: the first fault of the rank. It ends running kernels, and later ones do nothing, for
	// good.
	u32 fault;
	u32 unused;
};

// Control is the state of a rank's kernels between calls. Only they write it. Block b of a grid of g
// reads state b and counts in the states b, b+g, b+2g, ..., so no block waits for another. There are as
// many states as two blocks of the smallest grids have threads: more would cost small calls 0.1 us.
struct Control {
	State states[MaxBlocks];
};

// Header identifies a call to another rank. Both halves carry the epoch, so that they need not arrive
// together.
struct Header {
	u64 low, high;
	u64 unused[14];
};

// Exchange is the memory of a rank that others write. Calls of odd and of even epochs use different
// halves: a rank may be one call ahead without overwriting data in use, and none can be two ahead, since
// each call waits for all headers.
struct Exchange {
	Control control;
	alignas(4096) Header headers[2][MaxRanks];
	// done reports that a block of a bulk kernel of a rank no longer needs this rank's memory.
	alignas(4096) u64 done[MaxBulkBlocks][MaxRanks];
};

enum : u64 {
	ExchangeBytes = 32 << 20,
	HalfBytes = (ExchangeBytes - sizeof(Exchange)) / 2 / 4096 * 4096,
};

DEVICE Exchange* of(const Call& call, u32 rank) { return (Exchange*)call.exchange[rank]; }
DEVICE Exchange* own(const Call& call) { return of(call, call.rank); }
