// The arguments of kernels, and the memory in which ranks exchange data. The structures match those of
// arguments.go. A test compares their sizes and offsets.
#pragma once
#include <device.h>

enum { MaxRanks = 8, MaxBlocks = 256, MaxBulkBlocks = 128 };

// Call describes a collective from the view of one rank. All parts have the same size. Sums read the part
// for rank r at r * sendStride of the input. Copies write the part of rank r at r * recvStride of the
// output. The constant cache, which holds the arguments, is cold in every launch, so the fields that small
// messages need come first.
struct Call {
	u32 rank, ranks;
	// Bit sets of ranks. This rank sends to the ranks in sendTo and receives from those in recvFrom.
	u32 sendTo, recvFrom;
	// The reduction, and the divisor of an average. The divisor of other reductions is 1.
	u32 op, divisor;
	// Identifies the call. If it differs between ranks, the call fails.
	u64 digest;
	// This rank's own buffers.
	const char* send;
	char* recv;
	// The size of a part in bytes, and the distances between parts.
	u64 bytes, sendStride, recvStride;
	// The exchange memory of each rank, at its address in this process.
	char* exchange[MaxRanks];
	// The longest wait for peers in nanoseconds, and the memory for reports to the host.
	u64 timeout;
	struct Report* report;
};

// Bulk is a call in which ranks access each other's buffers. The addresses are those in this process.
struct Bulk : Call {
	const char* sendAt[MaxRanks];
	char* recvAt[MaxRanks];
};

enum Op { Sum, Min, Max, Prod };

// Kernels of any reduction also read an order and an element type from call.op. Tree combines ranks as a
// tree. Rounded also rounds intermediate results of 16-bit types.
enum Order : u32 { Tree = 8, Rounded = 16 };
enum Type : u32 { TypeUnit = 32, TypeF32 = 0, TypeF64, TypeF16, TypeBF16, TypeI8, TypeU8, TypeI32, TypeI64 };

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
	u32 unused;
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
DEVICE Exchange* of(const Call& call, u32 rank) { return (Exchange*)call.exchange[rank]; }
DEVICE Exchange* own(const Call& call) { return of(call, call.rank); }
