// limit measures how fast a machine can run collectives: over shared windows, with no checks,
// streams or groups, and with ranks made by fork. symmem is compared with it; nobody should use it.
// Build: gcc -O3 -march=native -o limit limit.c
#define _GNU_SOURCE
#include <immintrin.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "measure.h"

enum { MAX_RANKS = 16, SMALL = 2048, ONE_SHOT = 32 << 10, STREAM = 16 << 20 };

#if defined(__AVX512F__)
typedef __m512 vec;
#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
#define STREAMED _mm512_stream_ps
#define ADD _mm512_add_ps
#elif defined(__AVX2__)
typedef __m256 vec;
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define STREAMED _mm256_stream_ps
#define ADD _mm256_add_ps
#else
#error "limit needs AVX2 or AVX-512: build it with -march=native on such a machine"
#endif
enum { LANES = sizeof(vec) / sizeof(float) };

// A mail slot has its number in its first cache line, directly followed by the data: 56 bytes
// arrive together with the number, the rest in the following lines. Two slots suffice, because no
// rank can be two ahead.
typedef struct {
	_Alignas(128) _Atomic uint64_t number;
	float data[SMALL / sizeof(float)];
} slot_t;

typedef struct {
	_Alignas(128) _Atomic uint64_t arrived;
	_Alignas(128) double seconds;
	slot_t slots[2];
} rank_t;

static rank_t *all;
static float *in[MAX_RANKS], *out[MAX_RANKS];
static int me, ranks, patience;
static uint64_t steps, mails;

static void await(_Atomic uint64_t *word, uint64_t want) {
	for (int n = 0; atomic_load_explicit(word, memory_order_acquire) < want; n++)
		n < patience ? _mm_pause() : (void)sched_yield();
}

static void barrier(void) {
	atomic_store_explicit(&all[me].arrived, ++steps, memory_order_release);
	for (int r = 0; r < ranks; r++) await(&all[r].arrived, steps);
}

// sum adds n floats of all sources and stores the result in each target.
static void sum(float **to, int targets, float **from, size_t n, int stream) {
	size_t i = 0;
	for (; i + 2 * LANES <= n; i += 2 * LANES) {
		vec a = LOAD(from[0] + i), b = LOAD(from[0] + i + LANES);
		for (int r = 1; r < ranks; r++) {
			a = ADD(a, LOAD(from[r] + i));
			b = ADD(b, LOAD(from[r] + i + LANES));
		}
		for (int t = 0; t < targets; t++)
			if (stream) STREAMED(to[t] + i, a), STREAMED(to[t] + i + LANES, b);
			else STORE(to[t] + i, a), STORE(to[t] + i + LANES, b);
	}
	for (; i < n; i++) {
		float a = from[0][i];
		for (int r = 1; r < ranks; r++) a += from[r][i];
		for (int t = 0; t < targets; t++) to[t][i] = a;
	}
	if (stream) _mm_sfence();
}

static void copy(float *to, const float *from, size_t n, int stream) {
	size_t i = 0;
	if (!stream || (uintptr_t)to % sizeof(vec)) {
		memcpy(to, from, n * sizeof *to);
		return;
	}
	for (; i + LANES <= n; i += LANES) STREAMED(to + i, LOAD(from + i));
	for (; i < n; i++) to[i] = from[i];
	_mm_sfence();
}

// mail posts n floats and returns the addresses of every rank's floats.
static void mail(const float *mine, size_t n, float **got) {
	slot_t *slot = &all[me].slots[++mails % 2];
	memcpy(slot->data, mine, n * sizeof *mine);
	atomic_store_explicit(&slot->number, mails, memory_order_release);
	for (int r = 0; r < ranks; r++) {
		await(&all[r].slots[mails % 2].number, mails);
		got[r] = all[r].slots[mails % 2].data;
	}
}

static void from_all(size_t at, float **from) {
	for (int r = 0; r < ranks; r++) from[r] = in[r] + at;
}

static void all_reduce(size_t n) {
	float *from[MAX_RANKS], *to[MAX_RANKS];
	if (n * sizeof(float) <= SMALL) {
		mail(in[me], n, from);
		sum(&out[me], 1, from, n, 0);
		return;
	}
	barrier();
	size_t part = n / (size_t)ranks & ~(size_t)(LANES - 1), at = part * (size_t)me;
	if (n * sizeof(float) <= ONE_SHOT) {
		from_all(0, from);
		sum(&out[me], 1, from, n, 0);
	} else {
		from_all(at, from);
		for (int r = 0; r < ranks; r++) to[r] = out[(me + r) % ranks] + at;
		sum(to, ranks, from, me == ranks - 1 ? n - at : part, n * sizeof(float) >= STREAM);
	}
	barrier();
}

static void all_gather(size_t n) {
	size_t part = n / (size_t)ranks;
	float *from[MAX_RANKS];
	if (part * sizeof(float) <= SMALL) {
		mail(in[me], part, from);
		for (int r = 0; r < ranks; r++) memcpy(out[me] + part * r, from[r], part * sizeof(float));
		return;
	}
	barrier();
	for (int k = 0; k < ranks; k++) {
		int r = (me + k) % ranks;
		copy(out[me] + part * r, in[r], part, n * sizeof(float) >= STREAM);
	}
	barrier();
}

static void reduce_scatter(size_t n) {
	size_t part = n / (size_t)ranks;
	float *from[MAX_RANKS];
	if (n * sizeof(float) <= SMALL) {
		mail(in[me], n, from);
		for (int r = 0; r < ranks; r++) from[r] += part * me;
		sum(&out[me], 1, from, part, 0);
		return;
	}
	barrier();
	from_all(part * me, from);
	sum(&out[me], 1, from, part, n * sizeof(float) >= STREAM && part % LANES == 0);
	barrier();
}

static const struct {
	const char *name;
	void (*run)(size_t n);
	int shared, scattered, gathered;
} ops[] = {
	{"all_reduce", all_reduce, 0, 0, 0},
	{"all_gather", all_gather, 1, 0, 1},
	{"reduce_scatter", reduce_scatter, 1, 1, 0},
};

static double batch(int op, size_t n, long iters) {
	barrier();
	double begin = now(), longest = 0;
	for (long i = 0; i < iters; i++) ops[op].run(n);
	all[me].seconds = now() - begin;
	barrier();
	for (int r = 0; r < ranks; r++)
		if (all[r].seconds > longest) longest = all[r].seconds;
	barrier();
	return longest;
}

static void check(int op, size_t n) {
	memset(out[me], 0, n * sizeof(float));
	barrier();
	ops[op].run(n);
	size_t part = n / (size_t)ranks, length = ops[op].scattered ? part : n, wrong = 0;
	barrier();
	for (size_t i = 0; i < length; i++)
		wrong += out[me][i] != (ops[op].gathered ? i / part + 1 : (size_t)ranks * (ranks + 1) / 2);
	if (wrong) {
		fprintf(stderr, "%s of %zu floats: %zu are wrong\n", ops[op].name, n, wrong);
		_exit(1);
	}
}

static void measure(const plan_t *p, int op, size_t n) {
	check(op, n);
	long iters = 1;
	for (;; iters *= 2) {
		double took = batch(op, n, iters);
		if (took < p->batch / 2 && iters < 1L << 24) continue;
		iters = (long)((double)iters * p->batch / took);
		if (iters < 1) iters = 1;
		break;
	}
	double seconds[MAX_BATCHES];
	for (int b = 0; b < p->batches; b++) seconds[b] = batch(op, n, iters) / (double)iters;
	if (me == 0) row(p, ranks, ops[op].name, n * sizeof(float), seconds);
}

// window returns shared memory that all ranks inherit.
static void *window(size_t bytes) {
	int fd = memfd_create("limit", 0);
	if (fd < 0 || ftruncate(fd, (off_t)bytes)) exit(3);
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) exit(3);
	return p;
}

int main(int argc, char **argv) {
	if (argc < 2 || (ranks = atoi(argv[1])) < 1 || ranks > MAX_RANKS) {
		fprintf(stderr, "usage: limit RANKS LABEL OPS SIZES BATCHES BATCH_MS\n");
		return 2;
	}
	plan_t p = read_plan(argc - 1, argv + 1);
	patience = ranks > processors() ? 20 : 4000;
	size_t most = elements(p.largest, ranks, 1);
	all = window(sizeof *all * (size_t)ranks);
	for (int r = 0; r < ranks; r++)
		in[r] = window(most * sizeof(float)), out[r] = window(most * sizeof(float));
	for (me = ranks - 1; me > 0; me--)
		if (fork() == 0) break;
	bind_rank(me);
	for (size_t i = 0; i < most; i++) in[me][i] = (float)(me + 1), out[me][i] = 0;
	for (int op = 0; op < (int)(sizeof ops / sizeof *ops); op++)
		for (int i = 0; i < p.count && wanted(&p, ops[op].name); i++)
			measure(&p, op, elements(p.sizes[i], ranks, ops[op].shared));
	int failed = 0, status;
	if (me == 0)
		while (wait(&status) > 0) failed |= status;
	return failed != 0;
}
