// Measures the links between GPUs in the patterns of an all-reduce: every GPU reads from, or writes
// to, all others at once. This is slower than one direction of one pair, which vendors quote. A
// large all-reduce on the direct path first reads and then writes (n-1)/n of the message, so it
// takes at least the sum of the two times below.
//
//	nvcc -O3 -arch=native -o links links.cu && ./links [MIB]     MIB of the message, 64 by default
#include <cstdio>
#include <cstdlib>
#include <algorithm>
#include <vector>

#define CHECK(call)                                                                      \
	do {                                                                             \
		cudaError_t e = (call);                                                  \
		if (e != cudaSuccess) {                                                  \
			fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e));       \
			exit(1);                                                         \
		}                                                                        \
	} while (0)

constexpr int kMaxGPUs = 8, kReplays = 20;

struct Peers {
	char *at[kMaxGPUs]; // the buffer of each GPU
	int rank, ranks, first, last; // peers are rank+first to rank+last, modulo ranks
	size_t part; // bytes for each peer
};

__device__ uint4 load(const uint4 *p) {
	uint4 v;
	asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
		: "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
	return v;
}

__device__ void store(uint4 *p, uint4 v) {
	asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};"
		:: "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// read_peers reads this GPU's part of every peer's buffer and writes the exclusive-or at home.
template <int U> __global__ void read_peers(Peers p) {
	size_t packs = p.part / 16, step = (size_t)gridDim.x * blockDim.x;
	size_t mine = p.rank * packs;
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < packs; i += step * U) {
		uint4 got[U][kMaxGPUs - 1];
#pragma unroll
		for (int u = 0; u < U; u++)
#pragma unroll
			for (int k = 0; k < kMaxGPUs - 1; k++)
				if (k >= p.first && k < p.last && i + u * step < packs)
					got[u][k] = load((uint4 *)p.at[(p.rank + 1 + k) % p.ranks] + mine + i + u * step);
#pragma unroll
		for (int u = 0; u < U; u++) {
			uint4 sum = {};
#pragma unroll
			for (int k = 0; k < kMaxGPUs - 1; k++)
				if (k >= p.first && k < p.last && i + u * step < packs) {
					sum.x ^= got[u][k].x, sum.y ^= got[u][k].y;
					sum.z ^= got[u][k].z, sum.w ^= got[u][k].w;
				}
			if (i + u * step < packs) store((uint4 *)p.at[p.rank] + mine + i + u * step, sum);
		}
	}
}

// write_peers writes this GPU's part to every peer's buffer.
template <int U> __global__ void write_peers(Peers p) {
	size_t packs = p.part / 16, step = (size_t)gridDim.x * blockDim.x;
	size_t mine = p.rank * packs;
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < packs; i += step * U) {
		uint4 v[U];
#pragma unroll
		for (int u = 0; u < U; u++)
			if (i + u * step < packs) v[u] = load((uint4 *)p.at[p.rank] + mine + i + u * step);
#pragma unroll
		for (int u = 0; u < U; u++)
#pragma unroll
			for (int k = 0; k < kMaxGPUs - 1; k++)
				if (k >= p.first && k < p.last && i + u * step < packs)
					store((uint4 *)p.at[(p.rank + 1 + k) % p.ranks] + mine + i + u * step, v[u]);
	}
}

struct Machine {
	int gpus;
	std::vector<char *> buffers;
	std::vector<cudaStream_t> streams;
	std::vector<cudaEvent_t> begins, ends;
};

Machine open_all(size_t bytes) {
	Machine m;
	CHECK(cudaGetDeviceCount(&m.gpus));
	m.gpus = std::min(m.gpus, kMaxGPUs);
	m.buffers.resize(m.gpus), m.streams.resize(m.gpus);
	m.begins.resize(m.gpus), m.ends.resize(m.gpus);
	for (int g = 0; g < m.gpus; g++) {
		CHECK(cudaSetDevice(g));
		for (int peer = 0; peer < m.gpus; peer++)
			if (peer != g) CHECK(cudaDeviceEnablePeerAccess(peer, 0));
		CHECK(cudaMalloc(&m.buffers[g], bytes));
		CHECK(cudaMemset(m.buffers[g], g + 1, bytes));
		CHECK(cudaStreamCreate(&m.streams[g]));
		CHECK(cudaEventCreate(&m.begins[g]));
		CHECK(cudaEventCreate(&m.ends[g]));
	}
	return m;
}

// time_us returns the time of one call in microseconds on the slowest GPU: the median of seven rows
// of calls.
template <class Call> double time_us(Machine &m, int active, Call call) {
	std::vector<double> rows;
	for (int row = 0; row < 8; row++) {
		for (int g = 0; g < active; g++) {
			CHECK(cudaSetDevice(g));
			call(g); // so that all GPUs run before the first one is timed
			CHECK(cudaEventRecord(m.begins[g], m.streams[g]));
			for (int i = 0; i < kReplays; i++) call(g);
			CHECK(cudaEventRecord(m.ends[g], m.streams[g]));
		}
		double slowest = 0;
		for (int g = 0; g < active; g++) {
			float ms;
			CHECK(cudaSetDevice(g));
			CHECK(cudaEventSynchronize(m.ends[g]));
			CHECK(cudaEventElapsedTime(&ms, m.begins[g], m.ends[g]));
			slowest = std::max(slowest, ms * 1000.0 / kReplays);
		}
		if (row > 0) rows.push_back(slowest);
	}
	std::sort(rows.begin(), rows.end());
	return rows[rows.size() / 2];
}

using Kernel = void (*)(Peers);

double measure(Machine &m, int active, int first, int last, size_t part, Kernel k, int blocks, int threads) {
	return time_us(m, active, [&](int g) {
		Peers p = {};
		for (int r = 0; r < m.gpus; r++) p.at[r] = m.buffers[r];
		p.rank = g, p.ranks = m.gpus, p.first = first, p.last = last, p.part = part;
		k<<<blocks, threads, 0, m.streams[g]>>>(p);
		CHECK(cudaGetLastError());
	});
}

int main(int argc, char **argv) {
	size_t bytes = (argc > 1 ? atol(argv[1]) : 64) << 20;
	Machine m = open_all(bytes);
	if (m.gpus < 2) return fprintf(stderr, "links: this takes two GPUs\n"), 1;
	cudaDeviceProp properties;
	CHECK(cudaGetDeviceProperties(&properties, 0));
	size_t part = bytes / m.gpus;
	int others = m.gpus - 1;
	printf("# %d x %s, parts of %zu MiB: GB/s of one GPU in one direction\n", m.gpus, properties.name, part >> 20);
	printf("| packs | blocks x threads | read, one pair one way | read, all | write, one pair one way | write, all |\n");
	printf("|---|---|---|---|---|---|\n");
	struct Form { int packs; Kernel read, write; } forms[] = {{1, read_peers<1>, write_peers<1>}, {2, read_peers<2>, write_peers<2>}};
	double reading = 1e9, writing = 1e9;
	for (Form f : forms)
		for (int blocks : {16, 32, 64, 96, 128})
			for (int threads : {128, 256, 512}) {
				double read1 = measure(m, 1, 0, 1, part, f.read, blocks, threads);
				double read = measure(m, m.gpus, 0, others, part, f.read, blocks, threads);
				double write1 = measure(m, 1, 0, 1, part, f.write, blocks, threads);
				double write = measure(m, m.gpus, 0, others, part, f.write, blocks, threads);
				reading = std::min(reading, read), writing = std::min(writing, write);
				printf("| %d | %d x %d | %.0f | %.0f | %.0f | %.0f |\n", f.packs, blocks, threads,
					part / read1 / 1e3, others * part / read / 1e3,
					part / write1 / 1e3, others * part / write / 1e3);
			}
	printf("# least time of an all-reduce of %zu MiB: %.1f us of reads + %.1f us of writes = %.1f us\n",
		bytes >> 20, reading, writing, reading + writing);
}
