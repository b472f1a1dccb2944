// Tests of the device functions of kernels: indices, barriers, votes, lines and arithmetic, and of
// the driver's kernel launches.
extern "C" {
#include "scene.h"
}
#include "probe.h"
#include <initializer_list>
#include <math.h>

namespace {

struct Bench {
	struct rank* rank;
	CUmodule module;
	u64* out;
};

CUfunction find(const Bench& b, const char* name) {
	CUfunction function;
	MUST(cuModuleGetFunction(&function, b.module, name));
	return function;
}

CUresult try_launch(const Bench& b, CUfunction f, unsigned grid, unsigned block, u64 argument) {
	Probe p = {b.out, argument};
	void* params[] = {&p};
	return cuLaunchKernel(f, grid, 1, 1, block, 1, 1, 0, b.rank->stream, params, NULL);
}

void start(const Bench& b, const char* name, unsigned grid, unsigned block, u64 argument) {
	MUST(try_launch(b, find(b, name), grid, block, argument));
}

void run(const Bench& b, const char* name, unsigned grid, unsigned block, u64 argument) {
	memset(b.out, 0, SEGMENT);
	start(b, name, grid, block, argument);
	sync_rank(b.rank);
}

void check_places(const Bench& b) {
	const unsigned sizes[][2] = {{1, 1}, {3, 33}, {300, 7}, {2, 1024}, {3000, 64}};
	for (auto& size : sizes) {
		run(b, "probe_place", size[0], size[1], 0);
		for (u64 i = 0; i < size[0] * size[1]; i++) {
			u64 block = i / size[1], thread = i % size[1];
			CHECK(b.out[i] == (block << 48 | (u64)size[0] << 32 | size[1] << 16 | thread));
		}
		CHECK(b.out[size[0] * size[1]] == 0);
	}
}

void check_sync(const Bench& b) {
	for (u64 threads : {1, 31, 64, 100, 512}) {
		run(b, "probe_sync", 3, (unsigned)threads, 0);
		for (u64 i = 0; i < 3 * threads; i++) CHECK(b.out[i] == threads * (threads - 1) / 2);
	}
}

void check_votes(const Bench& b) {
	run(b, "probe_votes", 2, 70, 5);
	for (u64 i = 0; i < 140; i++) {
		u64 thread = i % 70, last = thread >= 64;
		// The last warp has six threads, so it has no thread 31.
		u64 expected = 1 | last << 1 | (1 - last) << 2 | 1 << 4 | 1 << 6;
		CHECK(b.out[i] == (thread < 5 ? 0 : expected));
	}
}

// The sum of equal numbers over a warp is exact in a tree. Sequential addition would round.
void check_sum(const Bench& b) {
	run(b, "probe_sum", 2, 96, 10);
	float sum = 0, tenths = 0;
	for (int i = 0; i < 96; i++) sum += (float)(i + 10);
	for (int i = 0; i < 3; i++) tenths += 0.1f * 32;
	for (int i = 0; i < 192; i++) {
		CHECK((u32)b.out[i] == dev::to_bits(sum));
		CHECK(b.out[i] >> 32 == dev::to_bits(tenths));
	}
}

void check_lines(const Bench& b) {
	for (const char* name : {"probe_lines_8", "probe_lines_16"}) {
		run(b, name, 2, 128, 0);
		for (int i = 0; i < 128; i++) CHECK(b.out[4 + i] == 0);
		for (int warp = 0; warp < 4; warp++) CHECK(b.out[256 + warp] == 50);
	}
}

u16 half_of(float f) {
	_Float16 h = (_Float16)f;
	u16 bits;
	memcpy(&bits, &h, 2);
	return bits;
}

// check_halves compares conversions with the compiler's: all halves, and floats around each of
// them.
void check_halves(const Bench& b) {
	run(b, "probe_from_half", 64, 1024, 0);
	for (u32 i = 0; i < 65536; i++) {
		_Float16 h;
		u16 bits = (u16)i;
		memcpy(&h, &bits, 2);
		float want = (float)h, got = dev::from_bits(((u32*)b.out)[i]);
		CHECK(want != want ? got != got : dev::to_bits(want) == dev::to_bits(got));
	}
	const u64 firsts[] = {0, 0x33000000, 0x33800000, 0x387f0000, 0x38800000, 0x3f800000, 0x477f8000,
	                      0x7f7f8000, 0xb3000000, 0xb87fe000, 0xc77f8000, 0xff7f8000};
	for (u64 first : firsts) {
		run(b, "probe_to_half", 4, 256, first);
		for (u32 i = 0; i < 65536; i++) {
			float f = dev::from_bits((u32)first + i);
			CHECK(((u16*)b.out)[i] == (f != f ? 0x7fff : half_of(f)));
		}
	}
}

void check_bfloat(float f, u16 got) {
	float g = dev::from_bits((u32)got << 16);
	if (f != f) {
		CHECK(got == 0x7fff);
		return;
	}
	// The result must not be farther away than its two neighbours. If one of them is as near, the
	// result must be even.
	double distance = fabs((double)f - g);
	for (int step : {-1, 1}) {
		float next = dev::from_bits((u32)(u16)(got + step) << 16);
		if (isinf(g) || !isfinite(next) || (got & 0x7fff) == 0) continue;
		double other = fabs((double)f - next);
		CHECK(distance < other || (distance == other && got % 2 == 0));
	}
}

void check_bfloats(const Bench& b) {
	run(b, "probe_to_bfloat", 16, 1024, 0);
	for (u32 i = 0; i < 16384; i++) {
		u32 bits = (u32)(b.out[i] >> 32);
		check_bfloat(dev::from_bits(bits), (u16)b.out[i]);
		check_bfloat(dev::from_bits(bits + 0x8000), (u16)(b.out[i] >> 16));
	}
}

void check_extremes(const Bench& b) {
	// These are the ranks of -0, 0, inf, -inf, 1 and -1 in their order. The last two values are
	// NaNs.
	const int order[] = {2, 3, 5, 0, 4, 1, -1, -1};
	const u32 bits[] = {0xff800000, 0xbf800000, 0x80000000, 0, 0x3f800000, 0x7f800000};
	run(b, "probe_extremes", 1, 64, 0);
	for (int i = 0; i < 64; i++) {
		int a = order[i / 8], c = order[i % 8];
		u32 least = (u32)(b.out[i] >> 32), most = (u32)b.out[i];
		bool none = a < 0 || c < 0;
		CHECK(least == (none ? 0x7fffffff : bits[a < c ? a : c]));
		CHECK(most == (none ? 0x7fffffff : bits[a < c ? c : a]));
	}
}

void check_swap(const Bench& b) {
	run(b, "probe_swap", 20, 100, 0);
	CHECK(b.out[0] == 2000);
}

// A launch returns while the kernel waits, and other streams continue.
void check_asynchronous(const Bench& b) {
	CUstream other;
	MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	memset(b.out, 0, SEGMENT);
	start(b, "probe_wait", 2, 64, 7);
	EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(b.rank->stream));
	MUST(cuStreamWriteValue32_v2(other, (CUdeviceptr)(uintptr_t)&b.out[1024], 1, 0));
	sync_rank(b.rank);
	for (int i = 0; i < 128; i++) CHECK(b.out[i] == 7);
	MUST(cuStreamDestroy_v2(other));
}

// A kernel is loaded at its first launch, which waits until no other kernel runs. A kernel that was
// loaded before runs concurrently with other kernels.
void check_loading(const Bench& b) {
	struct rank ranks[] = {*b.rank, *b.rank};
	for (auto& r : ranks) MUST(cuStreamCreate(&r.stream, CU_STREAM_NON_BLOCKING));
	Bench late = {&ranks[0], b.module, b.out + 4096}, other = {&ranks[1], b.module, b.out + 8192};
	MUST(cuFuncLoad(find(b, "probe_sum")));
	start(b, "probe_wait", 1, 1, 7);
	while (__atomic_load_n(b.out, __ATOMIC_ACQUIRE) == 0) sched_yield();
	start(late, "probe_place", 1, 1, 0);
	for (u64 i = 0; i < 100; i++) {
		start(other, "probe_sum", 1, 64, i);
		sync_rank(other.rank);
	}
	EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(late.rank->stream));
	__atomic_store_n(&b.out[1024], 1, __ATOMIC_RELEASE);
	sync_rank(late.rank);
	CHECK(late.out[0] == (1ull << 32 | 1 << 16));
	sync_rank(b.rank);
	CHECK(b.out[0] == 7);
	for (auto& r : ranks) MUST(cuStreamDestroy_v2(r.stream));
}

// A graph node keeps the parameters of its launch, and runs at each launch of the graph.
void check_graph(const Bench& b) {
	CUgraph graph;
	CUgraphExec exec;
	memset(b.out, 0, SEGMENT);
	MUST(cuStreamBeginCapture_v2(b.rank->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	start(b, "probe_wait", 2, 64, 7);
	start(b, "probe_swap", 1, 64, 0);
	MUST(cuStreamEndCapture(b.rank->stream, &graph));
	MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
	MUST(cuGraphDestroy(graph));
	CHECK(b.out[0] == 0);
	b.out[1024] = 1;
	for (int launch = 0; launch < 3; launch++) {
		memset(b.out, 0, 1024);
		MUST(cuGraphLaunch(exec, b.rank->stream));
		sync_rank(b.rank);
		CHECK(b.out[0] == 7 + 64);
		CHECK(b.out[127] == 7);
	}
	MUST(cuGraphExecDestroy(exec));
}

void check_packed(const Bench& b) {
	Probe p = {b.out, 3};
	size_t size = sizeof p, wrong = size - 8;
	CUfunction f = find(b, "probe_wait");
	void *pointer = (void*)CU_LAUNCH_PARAM_BUFFER_POINTER, *bytes = (void*)CU_LAUNCH_PARAM_BUFFER_SIZE;
	void* good[] = {pointer, &p, bytes, &size, (void*)CU_LAUNCH_PARAM_END};
	void* bad[] = {pointer, &p, bytes, &wrong, (void*)CU_LAUNCH_PARAM_END};
	void* params[] = {&p};
	memset(b.out, 0, 1024);
	b.out[1024] = 1;
	MUST(cuLaunchKernel(f, 1, 1, 1, 8, 1, 1, 0, b.rank->stream, NULL, good));
	p.argument = 4; // has no effect, because the parameters were copied
	sync_rank(b.rank);
	CHECK(b.out[7] == 3);
	EXPECT(1, cuLaunchKernel(f, 1, 1, 1, 8, 1, 1, 0, b.rank->stream, NULL, bad));
	EXPECT(1, cuLaunchKernel(f, 1, 1, 1, 8, 1, 1, 0, b.rank->stream, params, good));
	EXPECT(1, cuLaunchKernel(f, 1, 1, 1, 8, 1, 1, 0, b.rank->stream, NULL, NULL));
	EXPECT(1, cuLaunchKernel(f, 1, 1, 1, 8, 1, 1, (48 << 10) + 1, b.rank->stream, params, NULL));
	EXPECT(1, cuLaunchKernel(f, 1, 0, 1, 8, 1, 1, 0, b.rank->stream, params, NULL));
	EXPECT(1, cuLaunchKernel(f, 1, 1, 65536, 8, 1, 1, 0, b.rank->stream, params, NULL));
	EXPECT(1, cuLaunchKernel(f, 1, 1, 1, 32, 33, 1, 0, b.rank->stream, params, NULL));
	EXPECT(1, try_launch(b, f, 1, 1025, 0));
	EXPECT(1, try_launch(b, f, 0, 1, 0));
	EXPECT(1, try_launch(b, f, 1, 0, 0));
	EXPECT(400, try_launch(b, (CUfunction)&size, 1, 1, 0));
	EXPECT(400, try_launch(b, (CUfunction)((char*)f + 8), 1, 1, 0));
}

// check_functions looks up kernels of the module.
void check_functions(const Bench& b) {
	unsigned count;
	bool found = false;
	MUST(cuModuleGetFunctionCount(&count, b.module));
	CUfunction* all = (CUfunction*)calloc(count, sizeof *all);
	MUST(cuModuleEnumerateFunctions(all, count, b.module));
	for (unsigned i = 0; i < count; i++) {
		MUST(cuFuncLoad(all[i]));
		found = found || all[i] == find(b, "probe_place");
	}
	CHECK(found);
	free(all);
	EXPECT(400, cuFuncLoad((CUfunction)&count));
	EXPECT(400, cuModuleGetFunctionCount(&count, NULL));
	EXPECT(1, cuModuleEnumerateFunctions(NULL, count, b.module));
}

void check_modules(const Bench& b) {
	CUmodule module;
	CUfunction function;
	int value;
	EXPECT(200, cuModuleLoadData(&module, ""));
	EXPECT(1, cuModuleLoadData(&module, NULL));
	MUST(cuModuleLoadData(&module, "image"));
	EXPECT(500, cuModuleGetFunction(&function, module, "probe_nothing"));
	MUST(cuModuleUnload(module));
	EXPECT(400, cuModuleUnload(module));
	EXPECT(400, cuModuleGetFunction(&function, module, "probe_place"));
	MUST(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, find(b, "probe_place")));
	CHECK(value == 1024);
	EXPECT(1, cuFuncGetAttribute(&value, 99, find(b, "probe_place")));
	MUST(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
	CHECK(value == 9);
	MUST(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
	CHECK(value == 4);
}

// The attributes of the link between devices follow SOFTGPU_LINK.
void check_links(void) {
	const char* link = getenv("SOFTGPU_LINK");
	bool none = link != NULL && strcmp(link, "none") == 0;
	bool pcie = link != NULL && strcmp(link, "pcie") == 0;
	int can, access, atomics;
	MUST(cuDeviceCanAccessPeer(&can, 0, 1));
	MUST(cuDeviceGetP2PAttribute(&access, 2, 0, 1));
	MUST(cuDeviceGetP2PAttribute(&atomics, 3, 0, 1));
	CHECK(can == !none);
	CHECK(access == !none);
	CHECK(atomics == (!none && !pcie));
	MUST(cuDeviceCanAccessPeer(&can, 1, 1));
	CHECK(can == 0);
}

// A launch on a stream whose capture is invalidated retains no object.
void check_lost_capture(const Bench& b) {
	CUgraph graph;
	MUST(cuStreamBeginCapture_v2(b.rank->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(b.rank->stream));
	EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, try_launch(b, find(b, "probe_place"), 1, 1, 0));
	EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(b.rank->stream, &graph));
}

void scene_device(struct rank* r) {
	Bench b = {r, NULL, (u64*)(uintptr_t)r->segment.at};
	MUST(cuModuleLoadData(&b.module, "image"));
	check_loading(b);
	check_places(b);
	check_sync(b);
	check_votes(b);
	check_sum(b);
	check_lines(b);
	check_halves(b);
	check_bfloats(b);
	check_extremes(b);
	check_swap(b);
	check_asynchronous(b);
	check_graph(b);
	check_packed(b);
	check_lost_capture(b);
	check_functions(b);
	check_modules(b);
	check_links();
	MUST(cuModuleUnload(b.module));
}

}  // namespace

int main(void) {
	play(2, scene_device, NULL);
	return 0;
}
