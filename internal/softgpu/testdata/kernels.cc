// Compares the collectives of package kernels with simple loops, for all kernels, types and
// reductions, with odd sizes and unaligned buffers. Ranks are threads. The arguments are the number
// of ranks, the number of cases, and the largest grid.
#include <call.h>
extern "C" {
#include "scene.h"
}
#include "dice.h"

namespace {

enum Operation { AllReduce, ReduceScatter, Reduce, AllGather, Broadcast, AllToAll };
enum Type { Float, Half, BFloat, Int };
const char* const type_names[] = {"f32", "f16", "bf16", "i32"};
const u64 type_bytes[] = {4, 2, 2, 4};

// Case describes the call of all ranks in a round. It depends only on the number of the round.
struct Case {
	u64 round;
	const char* kernel;
	bool copies;
	Operation operation;
	Type type;
	u32 op, divisor, root, grid, block;
	u64 bytes;      // size of a part
	u64 from, to;   // offsets of the buffers
	bool in_place;
	bool wild;      // random bits instead of small numbers
};

// Shared holds data that all ranks use.
struct Shared {
	u64 rounds;
	u32 max_grid;
	pthread_barrier_t all;
	struct segment buffers[MaxRanks], exchange[MaxRanks];
};

// size_of_case chooses a size. Half of the sizes are near those where each warp of the grid gets
// another chunk of data bytes.
u64 size_of_case(Dice& dice, u64 element, u64 warps, u64 data) {
	u64 most = dice.below(16) == 0 ? 200000 : 5000;
	if (dice.below(2) == 0) return dice.below(most / element + 1) * element;
	u64 chunks = (1 + dice.below(9)) * warps + dice.below(3), bytes = chunks * data - dice.below(3) * element;
	return (bytes < 200000 ? bytes : 200000) / element * element;
}

bool two_steps(const Case& c) { return strcmp(c.kernel + 4, "_two_shot") == 0; }
bool wide(const Case& c) { return strncmp(c.kernel, "wide", 4) == 0; }

// unrolled reports whether the kernel is unrolled. Such kernels support 2 ranks, and at most two
// chunks per warp.
bool unrolled(const Case& c) { return strncmp(c.kernel, "unrolled", 4) == 0; }

// single reports whether a warp has at most one chunk.
bool single(const Case& c) { return strncmp(c.kernel, "line", 4) == 0 && !two_steps(c); }

Case case_of(u64 round, u32 ranks, u32 max_grid) {
	static const struct {
		const char* kernel;
		Operation operation;
	} kinds[] = {
		{"line_sum", AllReduce},      {"line_sum", ReduceScatter},  {"line_sum", Reduce},
		{"line_copy", AllGather},     {"line_copy", Broadcast},     {"line_copy", AllToAll},
		{"wide_sum", AllReduce},      {"wide_sum", ReduceScatter},  {"wide_sum", Reduce},
		{"wide_copy", AllGather},     {"wide_copy", Broadcast},     {"wide_copy", AllToAll},
		{"unrolled_sum", AllReduce},      {"unrolled_sum", ReduceScatter},  {"unrolled_sum", Reduce},
		{"line_two_shot", AllReduce}, {"bulk_two_shot", AllReduce}, {"bulk_sum", ReduceScatter},
		{"bulk_copy", AllGather},     {"bulk_copy", Broadcast},     {"bulk_copy", AllToAll},
	};
	const u64 count = sizeof kinds / sizeof *kinds;
	Dice dice = {round * 1000};
	Case c = {};
	c.round = round;
	c.kernel = kinds[round % count].kernel;
	if (unrolled(c) && ranks != 2) c.kernel = "wide_sum";
	c.operation = kinds[round % count].operation;
	c.copies = c.operation >= AllGather;
	c.type = (Type)dice.below(4);
	c.op = (u32)dice.below(3);
	c.divisor = c.op == Sum && dice.below(3) == 0 ? ranks : 1;
	c.root = (u32)dice.below(ranks);
	c.grid = 1 + (u32)dice.below(max_grid);
	c.block = 32 * (2 + (u32)dice.below(dice.below(4) == 0 ? 19 : 3));
	u64 element = c.copies ? 1 : type_bytes[c.type];
	u64 warps = c.grid * c.block / 32 - 1, packs = warps * 480 / element * element;
	c.bytes = size_of_case(dice, element, warps, wide(c) || unrolled(c) ? 480 : 240);
	if (single(c) && c.bytes > packs / 2) c.bytes = packs / 2;
	if (unrolled(c) && c.bytes > 2 * packs) c.bytes = 2 * packs;
	if (two_steps(c)) c.bytes = c.bytes * ranks + dice.below(ranks) * element;
	c.from = 4096 + dice.below(3) * element;
	c.to = 4096 + dice.below(16 / element) * element + dice.below(2) * 112;
	if (dice.below(2) == 0) c.to = c.from;
	c.in_place = c.operation != AllToAll && dice.below(3) == 0;
	c.wild = dice.below(4) == 0;
	return c;
}

bool bulk(const Case& c) { return strncmp(c.kernel, "bulk", 4) == 0; }

// Place holds the offsets and sizes of a rank's buffers.
struct Place {
	u64 send, recv, sent, received;
};

Place place_of(const Case& c, u32 rank, u32 ranks) {
	Place p = {c.from, c.to + 2 * MIB, c.bytes, c.bytes};
	if (c.operation == ReduceScatter || c.operation == AllToAll) p.sent *= ranks;
	if (c.operation == AllGather || c.operation == AllToAll) p.received *= ranks;
	if (!c.in_place) return p;
	if (c.operation == ReduceScatter) p.recv = p.send + rank * c.bytes;
	else if (c.operation == AllGather) p.send = p.recv + rank * c.bytes;
	else p.recv = p.send;
	return p;
}

// element_bits returns the bits of element i of a rank's input. Bits beyond the size of the element
// are meaningless.
u32 element_bits(const Case& c, u32 rank, u64 i) {
	u32 any = (u32)scramble(c.round << 40 ^ (u64)rank << 32 ^ i);
	float number = (float)((int)(any % 2001) - 1000) / 8;
	if (c.type == Int || c.wild) return any;
	if (c.type == Float) return dev::to_bits(number);
	if (c.type == BFloat) return dev::to_bits(number) >> 16;
	_Float16 half = (_Float16)number;
	u16 bits;
	memcpy(&bits, &half, 2);
	return bits;
}

u64 element_of(const Case& c) { return c.copies ? 1 : type_bytes[c.type]; }

void fill(const Case& c, char* at, u32 rank, u64 bytes) {
	u64 size = element_of(c);
	for (u64 i = 0; i < bytes / size; i++) {
		u32 bits = element_bits(c, rank, i);
		memcpy(at + i * size, &bits, size);
	}
}

float number_of(const Case& c, u32 bits) {
	_Float16 half;
	u16 low = (u16)bits;
	memcpy(&half, &low, 2);
	if (c.type == Half) return (float)half;
	return dev::from_bits(c.type == BFloat ? bits << 16 : bits);
}

u32 bits_of(const Case& c, float number) {
	_Float16 half = (_Float16)number;
	u32 bits = dev::to_bits(number);
	u16 low;
	if (c.type == Float) return bits;
	memcpy(&low, &half, 2);
	if (c.type == Half) return low;
	if (number != number) return 0x7fff;
	return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

float reduce_floats(u32 op, float a, float b) {
	if (op == Sum) return a + b;
	if (a != a || b != b) return a + b;
	if (a == b) return __builtin_signbit(a) == (op == Min) ? a : b;
	return (a < b) == (op == Min) ? a : b;
}

int reduce_ints(u32 op, int a, int b) {
	if (op == Sum) return (int)((u32)a + (u32)b);
	return (a < b) == (op == Min) ? a : b;
}

// scaled_average computes the average of element i from scaled numbers, whose sum does not
// overflow.
float scaled_average(const Case& c, u32 ranks, u64 i) {
	float scale = 1, sum = 0;
	while (scale * (float)ranks > 1) scale /= 2;
	for (u32 r = 0; r < ranks; r++) {
		float number = number_of(c, element_bits(c, r, i) & (type_bytes[c.type] == 2 ? 0xffff : ~0u)) * scale;
		sum = r == 0 ? number : sum + number;
	}
	return sum / ((float)ranks * scale);
}

// reduced returns element i of the reduction over all ranks.
u32 reduced(const Case& c, u32 ranks, u64 i) {
	u32 mask = type_bytes[c.type] == 2 ? 0xffff : ~0u;
	u32 first = element_bits(c, 0, i) & mask;
	int whole = (int)first;
	float number = number_of(c, first);
	for (u32 r = 1; r < ranks; r++) {
		u32 bits = element_bits(c, r, i) & mask;
		if (c.type == Int) whole = reduce_ints(c.op, whole, (int)bits);
		else number = reduce_floats(c.op, number, number_of(c, bits));
	}
	if (c.type == Int) return (u32)(whole / (int)c.divisor);
	if (c.divisor > 1 && !__builtin_isfinite(number)) return bits_of(c, scaled_average(c, ranks, i)) & mask;
	return bits_of(c, number / (float)c.divisor) & mask;
}

bool same(const Case& c, u32 a, u32 b) {
	if (a == b) return true;
	if (c.type == Int || c.copies) return false;
	float x = number_of(c, a), y = number_of(c, b);
	return x != x && y != y;
}

// expected returns byte i or element i of a rank's output.
u32 expected(const Case& c, u32 rank, u32 ranks, u64 i) {
	u64 count = c.bytes / element_of(c);
	switch (c.operation) {
	case AllGather: return element_bits(c, (u32)(i / count), i % count) & 0xff;
	case Broadcast: return element_bits(c, c.root, i) & 0xff;
	case AllToAll: return element_bits(c, (u32)(i / count), rank * count + i % count) & 0xff;
	case ReduceScatter: return reduced(c, ranks, rank * count + i);
	default: return reduced(c, ranks, i);
	}
}

[[noreturn]] void wrong(const Case& c, u32 rank, u32 ranks, const char* what, u64 at) {
	fprintf(stderr,
		"round %llu: rank %u of %u: %s at %llu: %s %s operation %d op %u divisor %u root %u, "
		"%llu bytes from %llu to %llu%s%s, grid %u of %u\n",
		c.round, rank, ranks, what, at, c.kernel, type_names[c.type], c.operation, c.op, c.divisor,
		c.root, c.bytes, c.from, c.to, c.in_place ? " in place" : "", c.wild ? " any bits" : "",
		c.grid, c.block);
	exit(1);
}

enum { Margin = 256, Untouched = 0x5a };

// verify checks the output of a rank and the memory around it.
void verify(const Case& c, const char* recv, const Place& p, u32 rank, u32 ranks) {
	u64 size = element_of(c);
	for (u64 i = 0; i < p.received / size; i++) {
		u32 got = 0;
		memcpy(&got, recv + i * size, size);
		if (!same(c, got, expected(c, rank, ranks, i))) wrong(c, rank, ranks, "a wrong element", i);
	}
	if (c.in_place) return;
	for (u64 i = 1; i <= Margin; i++)
		if (recv[-(long)i] != Untouched || recv[p.received + i - 1] != Untouched)
			wrong(c, rank, ranks, "a write outside", i);
}

void call_case(const Case& c, const Shared& s, u32 rank, u32 ranks, Bulk& call) {
	u32 all = (1u << ranks) - 1;
	for (u32 r = 0; r < ranks; r++) {
		Place there = place_of(c, r, ranks);
		call.sendAt[r] = (const char*)s.buffers[r].at + there.send;
		call.recvAt[r] = (char*)s.buffers[r].at + there.recv;
		call.exchange[r] = (char*)s.exchange[r].at;
	}
	call.send = call.sendAt[rank];
	call.recv = call.recvAt[rank];
	call.bytes = c.bytes;
	call.digest = scramble(c.round);
	call.timeout = 60ull * 1000 * 1000 * 1000;
	call.rank = rank;
	call.ranks = ranks;
	call.sendTo = call.recvFrom = all;
	call.op = c.op;
	call.divisor = c.divisor;
	if (c.operation == ReduceScatter || c.operation == AllToAll) call.sendStride = c.bytes;
	if (c.operation == AllGather || c.operation == AllToAll) call.recvStride = c.bytes;
	if (two_steps(c))
		call.sendStride = ((c.bytes + ranks - 1) / ranks + 15) / 16 * 16;
	if (c.operation == Reduce) call.sendTo = 1u << c.root;
	if (c.operation == Reduce && rank != c.root) call.recvFrom = 0;
	if (c.operation == Broadcast) call.recvFrom = 1u << c.root;
	if (c.operation == Broadcast && rank != c.root) call.sendTo = 0;
}

CUfunction function_of(CUmodule module, const Case& c, u32 ranks) {
	char name[64];
	u32 most = ranks == 2 || ranks == 4 ? ranks : 8;
	if (most == 2 && two_steps(c) && !bulk(c)) most = 8;  // there is none for 2 ranks
	if (c.copies) snprintf(name, sizeof name, "%s_%u", c.kernel, most);
	else snprintf(name, sizeof name, "%s_%s_%u", c.kernel, type_names[c.type], most);
	CUfunction function;
	MUST(cuModuleGetFunction(&function, module, name));
	return function;
}

// launch passes each kernel the part of a call that it needs.
void launch(CUfunction function, const Case& c, CUstream stream, Bulk& call) {
	size_t size = bulk(c) ? sizeof(Bulk) : sizeof(Call);
	void* extra[] = {(void*)1, &call, (void*)2, &size, NULL};
	MUST(cuLaunchKernel(function, c.grid, 1, 1, c.block, 1, 1, 0, stream, NULL, extra));
}

void play_case(struct rank* r, CUmodule module, Shared& s, const Case& c, Report* report) {
	u32 rank = (u32)r->number, ranks = (u32)r->ranks;
	Place p = place_of(c, rank, ranks);
	char* base = (char*)s.buffers[rank].at;
	if (!c.in_place) memset(base + p.recv - Margin, Untouched, p.received + 2 * Margin);
	fill(c, base + p.send, rank, p.sent);
	Bulk call = {};
	call_case(c, s, rank, ranks, call);
	call.report = report;
	launch(function_of(module, c, ranks), c, r->stream, call);
	sync_rank(r);
	if (report->fault != None) wrong(c, rank, ranks, "a fault", report->fault);
	if (c.operation != Reduce || rank == c.root) verify(c, base + p.recv, p, rank, ranks);
}

// play_diverged makes calls that differ. Both ranks must report it. Their state is unusable
// afterwards.
void play_diverged(struct rank* r, CUmodule module, Shared& s, Report* report) {
	Case c = case_of(0, 2, 1);
	Bulk call = {};
	call_case(c, s, (u32)r->number, 2, call);
	call.report = report;
	call.digest += (u64)r->number;
	launch(function_of(module, c, 2), c, r->stream, call);
	sync_rank(r);
	CHECK(report->fault == Diverged);
	CHECK(report->digest == call.digest);
	CHECK(report->theirs == scramble(0) + (u64)(1 - r->number));
}

// play_alone makes a call that the other rank omits.
void play_alone(struct rank* r, CUmodule module, Shared& s, Report* report, const char* kernel) {
	Case c = case_of(0, 2, 1);
	Bulk call = {};
	c.kernel = kernel;
	c.grid = 4;
	c.block = 128;
	call_case(c, s, (u32)r->number, 2, call);
	call.report = report;
	call.timeout = 1000 * 1000;
	launch(function_of(module, c, 2), c, r->stream, call);
	sync_rank(r);
	CHECK(report->fault == TimedOut);
	CHECK(report->ranks == 1u << (1 - r->number));
}

void open_shared(struct rank* r, Shared& s) {
	s.buffers[r->number] = r->segment;
	s.exchange[r->number] = make_segment(r->number, ExchangeBytes);
	memset((void*)s.exchange[r->number].at, 0, ExchangeBytes);
	pthread_barrier_wait(&s.all);
}

// forget resets the exchange memory of all ranks after a fault.
void forget(struct rank* r, Shared& s, Report* report) {
	pthread_barrier_wait(&s.all);
	memset((void*)s.exchange[r->number].at, 0, sizeof(Exchange));
	*report = Report{};
	pthread_barrier_wait(&s.all);
}

void scene_kernels(struct rank* r) {
	Shared& s = *(Shared*)r->argument;
	CUmodule module;
	void* pinned;
	open_shared(r, s);
	MUST(cuModuleLoadData(&module, "any image"));
	MUST(cuMemHostAlloc(&pinned, sizeof(Report), 0));
	Report* report = (Report*)pinned;
	for (u64 round = 0; round < s.rounds; round++)
		play_case(r, module, s, case_of(round, (u32)r->ranks, s.max_grid), report);
	if (r->ranks == 2) {
		forget(r, s, report);
		play_diverged(r, module, s, report);
		const char* const kernels[] = {"line_sum", "wide_sum", "unrolled_sum", "line_two_shot", "bulk_two_shot"};
		for (const char* kernel : kernels) {
			forget(r, s, report);
			if (r->number == 1) play_alone(r, module, s, report, kernel);
		}
	}
	pthread_barrier_wait(&s.all);
	MUST(cuMemFreeHost(pinned));
	MUST(cuModuleUnload(module));
	free_segment(s.exchange[r->number], ExchangeBytes);
}

}  // namespace

int main(int count, char** words) {
	CHECK(count == 4);
	static Shared s;
	int ranks = atoi(words[1]);
	s.rounds = strtoull(words[2], NULL, 10);
	s.max_grid = (u32)atoi(words[3]);
	pthread_barrier_init(&s.all, NULL, (unsigned)ranks);
	play(ranks, scene_kernels, &s);
	return 0;
}
