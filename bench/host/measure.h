// Code that the C programs of this directory share: the clock, binding to a processor, the
// arguments and the rows. Sizes are those of nccl-tests: the output of an all-gather and the input
// of a reduce-scatter, rounded up to whole floats for each rank.
#ifndef SYMMEM_BENCH_MEASURE_H
#define SYMMEM_BENCH_MEASURE_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_SIZES = 64, MAX_BATCHES = 501 };

typedef struct {
	const char *label;
	const char *ops; // with commas around each name
	size_t sizes[MAX_SIZES], largest;
	int count, batches;
	double batch; // seconds
} plan_t;

static inline double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// bind_rank binds the calling thread to the rank-th of its permitted processors.
static inline void bind_rank(int rank) {
	cpu_set_t allowed, one;
	sched_getaffinity(0, sizeof allowed, &allowed);
	int skip = rank % CPU_COUNT(&allowed);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &allowed) && skip-- == 0) {
			CPU_ZERO(&one);
			CPU_SET(cpu, &one);
			sched_setaffinity(0, sizeof one, &one);
			return;
		}
}

static inline int processors(void) {
	cpu_set_t allowed;
	sched_getaffinity(0, sizeof allowed, &allowed);
	return CPU_COUNT(&allowed);
}

// read_plan reads LABEL OPS SIZES BATCHES BATCH_MS. Sizes are bytes, separated by commas.
static inline plan_t read_plan(int argc, char **argv) {
	if (argc != 6) {
		fprintf(stderr, "usage: %s LABEL OPS SIZES BATCHES BATCH_MS\n", argv[0]);
		exit(2);
	}
	plan_t p = {.label = argv[1], .batches = atoi(argv[4]), .batch = atof(argv[5]) * 1e-3};
	char *ops = malloc(strlen(argv[2]) + 3);
	sprintf(ops, ",%s,", argv[2]);
	p.ops = ops;
	for (char *s = strtok(argv[3], ","); s && p.count < MAX_SIZES; s = strtok(NULL, ",")) {
		p.sizes[p.count] = strtoull(s, NULL, 10);
		if (p.sizes[p.count] > p.largest) p.largest = p.sizes[p.count];
		p.count++;
	}
	if (p.batches < 1 || p.batches > MAX_BATCHES || !p.count) {
		fprintf(stderr, "%s: nothing to measure\n", argv[0]);
		exit(2);
	}
	return p;
}

static inline int wanted(const plan_t *p, const char *op) {
	char name[64];
	snprintf(name, sizeof name, ",%s,", op);
	return strstr(p->ops, name) != NULL;
}

// elements rounds a size up; shared sizes count the parts of all ranks.
static inline size_t elements(size_t bytes, int ranks, int shared) {
	size_t unit = sizeof(float) * (shared ? (size_t)ranks : 1);
	size_t n = (bytes + unit - 1) / unit;
	return (n ? n : 1) * unit / sizeof(float);
}

static inline int by_value(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

// row prints label, ranks, operation, bytes, and the median, 10th and 90th percentiles in us.
static inline void row(const plan_t *p, int ranks, const char *op, size_t bytes, double *seconds) {
	int n = p->batches;
	qsort(seconds, (size_t)n, sizeof *seconds, by_value);
	printf("%s,%d,%s,%zu,%.4f,%.4f,%.4f\n", p->label, ranks, op, bytes, seconds[n / 2] * 1e6,
	       seconds[n / 10] * 1e6, seconds[n - 1 - n / 10] * 1e6);
	fflush(stdout);
}

#endif
