// The arguments of kernels for collectives. The structures match those of arguments.go. A test compares
// their sizes and offsets.
#pragma once
#include <exchange.h>

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

enum { MaxTensors = 8 };

// Parts describes a buffer that has a part for each rank: the offset and the size of each part, in bytes.
struct Parts {
	u64 at[MaxRanks], bytes[MaxRanks];
};

// Tensor describes a tensor of a gather. send is this rank's part. recv has the parts of all ranks.
struct Tensor {
	const char* send;
	char* recv;
	// In line kernels, the number of the first chunk. Chunks are counted over all tensors, by the largest
	// part of each tensor.
	u64 first;
	Parts parts;
	// In bulk kernels, recv of each rank, at its address in this process.
	char* recvAt[MaxRanks];
};

// Gather holds the arguments of a gather.
struct Gather {
	u32 rank, ranks, tensors, chunks;
	u64 digest, timeout;
	struct Report* report;
	char* exchange[MaxRanks];
	Tensor tensor[MaxTensors];
};

// Scatter holds the arguments of a scatter. send has a part for each rank. recv is this rank's part.
struct Scatter {
	u32 rank, ranks, op, divisor;
	u64 digest, timeout;
	struct Report* report;
	char* exchange[MaxRanks];
	const char* send;
	char* recv;
	u64 chunks;
	Parts parts;
	// In bulk kernels, send of each rank, at its address in this process.
	const char* sendAt[MaxRanks];
};

enum Op { Sum, Min, Max, Prod };

// Kernels of any reduction also read an order and an element type from call.op. Tree combines ranks as a
// tree. Rounded also rounds intermediate results of 16-bit types.
enum Order : u32 { Tree = 8, Rounded = 16 };
enum Type : u32 { TypeUnit = 32, TypeF32 = 0, TypeF64, TypeF16, TypeBF16, TypeI8, TypeU8, TypeI32, TypeI64 };
