// mpibench measures collectives of an MPI library as "symmem bench collective" measures symmem's:
// ranks bound to processors, float32 sums out of place, the time of the slowest rank, the median of
// batches.
#define _GNU_SOURCE
#include <mpi.h>

#include "measure.h"

typedef struct {
	const char *name;
	int shared;
	void (*run)(const float *send, float *recv, size_t n, int ranks);
	float (*want)(size_t i, size_t n, int ranks);
	int parts; // the output is one of so many parts of n: 1 means all of it, 0 one for each rank
} op_t;

static void all_reduce(const float *s, float *r, size_t n, int ranks) {
	(void)ranks;
	MPI_Allreduce(s, r, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_gather(const float *s, float *r, size_t n, int ranks) {
	int part = (int)(n / (size_t)ranks);
	MPI_Allgather(s, part, MPI_FLOAT, r, part, MPI_FLOAT, MPI_COMM_WORLD);
}

static void reduce_scatter(const float *s, float *r, size_t n, int ranks) {
	MPI_Reduce_scatter_block(s, r, (int)(n / (size_t)ranks), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static float want_sum(size_t i, size_t n, int ranks) {
	(void)i, (void)n;
	return (float)(ranks * (ranks + 1) / 2);
}

static float want_rank(size_t i, size_t n, int ranks) {
	return (float)(i / (n / (size_t)ranks) + 1);
}

static const op_t ops[] = {
	{"all_reduce", 0, all_reduce, want_sum, 1},
	{"all_gather", 1, all_gather, want_rank, 1},
	{"reduce_scatter", 1, reduce_scatter, want_sum, 0},
};

static double batch(const op_t *op, const float *s, float *r, size_t n, int ranks, long iters) {
	MPI_Barrier(MPI_COMM_WORLD);
	double begin = now();
	for (long i = 0; i < iters; i++) op->run(s, r, n, ranks);
	double mine = now() - begin, longest;
	MPI_Allreduce(&mine, &longest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	return longest;
}

static void check(const op_t *op, const float *s, float *r, size_t n, int ranks) {
	memset(r, 0, n * sizeof *r);
	op->run(s, r, n, ranks);
	size_t out = op->parts ? n : n / (size_t)ranks, wrong = 0;
	for (size_t i = 0; i < out; i++) wrong += r[i] != op->want(i, n, ranks);
	if (wrong) {
		fprintf(stderr, "%s of %zu floats: %zu are wrong\n", op->name, n, wrong);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

static void measure(const plan_t *p, const op_t *op, float *s, float *r, size_t n, int ranks) {
	check(op, s, r, n, ranks);
	long iters = 1;
	for (;; iters *= 2) {
		double took = batch(op, s, r, n, ranks, iters);
		if (took < p->batch / 2 && iters < 1L << 24) continue;
		iters = (long)((double)iters * p->batch / took);
		if (iters < 1) iters = 1;
		break;
	}
	double seconds[MAX_BATCHES];
	for (int b = 0; b < p->batches; b++)
		seconds[b] = batch(op, s, r, n, ranks, iters) / (double)iters;
	int rank;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (rank == 0) row(p, ranks, op->name, n * sizeof *s, seconds);
}

int main(int argc, char **argv) {
	MPI_Init(&argc, &argv);
	int rank, ranks;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	bind_rank(rank);
	plan_t p = read_plan(argc, argv);
	size_t most = elements(p.largest, ranks, 1);
	size_t bytes = (most * sizeof(float) + (2u << 20)) & ~((2ul << 20) - 1);
	float *s = aligned_alloc(2u << 20, bytes), *r = aligned_alloc(2u << 20, bytes);
	for (size_t i = 0; i < most; i++) s[i] = (float)(rank + 1), r[i] = 0;
	for (size_t o = 0; o < sizeof ops / sizeof *ops; o++)
		for (int i = 0; i < p.count && wanted(&p, ops[o].name); i++)
			measure(&p, &ops[o], s, r, elements(p.sizes[i], ranks, ops[o].shared), ranks);
	MPI_Finalize();
	return 0;
}
