/* Prints what calls cost. Nothing is asserted. If DRIVE_SHORT is set, each is measured once. */
#include <time.h>

#include "drive.h"

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int rounds(int most) { return getenv("DRIVE_SHORT") != NULL ? 1 : most; }

#define MEASURE(name, call)                                                                        \
	do {                                                                                           \
		double best = 1e18;                                                                        \
		for (int round = 0; round < rounds(20); round++) {                                         \
			double begin = now();                                                                  \
			for (int i = 0; i < 10000; i++) call;                                                  \
			double each = (now() - begin) / 10000;                                                 \
			if (each < best) best = each;                                                          \
		}                                                                                          \
		printf("%-28s %7.1f ns\n", name, best);                                                    \
	} while (0)

static uint64_t world;
static float buffer[16384];

static void two_calls(int64_t count) {
	DO(symmem_all_reduce(world, count, SYMMEM_FLOAT32, SYMMEM_SUM, 0, buffer, buffer, 0));
	DO(symmem_stream_synchronize(0));
}

static void one_call(int64_t count) {
	struct symmem_call call = {
		.size = sizeof call, .group = world, .operation = SYMMEM_ALL_REDUCE, .count = count,
		.type = SYMMEM_FLOAT32, .op = SYMMEM_SUM, .send = buffer, .recv = buffer,
		.flags = SYMMEM_CALL_WAIT,
	};
	DO(symmem_call(&call));
}

/* Waits for a time without a system call. */
static void spin(double ns) {
	for (double end = now() + ns; now() < end;) {}
}

static int ascending(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

enum { CALLS = 1000 };

/* Returns the median time of a call, from the arrival of the last rank. Rank 1 arrives late by a
 * given time. */
static double median(void (*call)(int64_t), int64_t count, double late) {
	static double begin[CALLS], last[CALLS], took[CALLS];
	for (int i = 0; i < CALLS; i++) {
		if (rank == 1 && late > 0) spin(late);
		begin[i] = now();
		call(count);
		took[i] = now();
	}
	DO(symmem_collective(world, SYMMEM_ALL_REDUCE, CALLS, SYMMEM_FLOAT64, SYMMEM_MAX, 0, 0, begin, last,
	                     0));
	DO(symmem_stream_synchronize(0));
	for (int i = 0; i < CALLS; i++) took[i] -= last[i];
	qsort(took, CALLS, sizeof *took, ascending);
	return took[CALLS / 2];
}

/* Compares a collective and a wait in two calls with both in one, in alternating rounds. */
static void compare_waits(void) {
	static const int64_t counts[] = {2, 256, 16384};
	static const double lates[] = {0, 20e3, 500e3};
	enum { ROUNDS = 5 };
	int count = rounds(ROUNDS);
	for (int c = 0; c < 3; c++) {
		for (int l = 0; l < 3; l++) {
			double two[ROUNDS], one[ROUNDS];
			for (int round = 0; round < count; round++) {
				two[round] = median(two_calls, counts[c], lates[l]);
				one[round] = median(one_call, counts[c], lates[l]);
			}
			qsort(two, count, sizeof *two, ascending);
			qsort(one, count, sizeof *one, ascending);
			printf("rank %d: all_reduce of %6lld bytes, rank 1 late by %4.0f us: two calls %6.2f us, "
			       "one call %6.2f us\n",
			       rank, (long long)counts[c] * 4, lates[l] / 1e3, two[count / 2] / 1e3,
			       one[count / 2] / 1e3);
		}
	}
}

void speed(void) {
	world = open_with("{}");
	void *at;
	volatile int64_t sink = 0;
	DO(symmem_alloc(0, 4096, 0, &at));
	DO(symmem_scope_end(world, 0, NULL));
	if (size > 1) {
		compare_waits();
		DO(symmem_close(1));
		return;
	}
	MEASURE("read a word", sink += symmem_generation()[0]);
	MEASURE("is_open (enters Go)", sink += symmem_is_open());
	MEASURE("is_symmetric", sink += symmem_is_symmetric(world, 64, at));
	MEASURE("scope_end, nothing new", (void)symmem_scope_end(world, 0, NULL));
	MEASURE("torch_alloc and torch_free", symmem_torch_free(symmem_torch_alloc(2 << 20, 0, NULL), 0, 0,
	                                                        NULL));
	MEASURE("all_reduce of 8 bytes, 1 rank",
	        (void)symmem_all_reduce(world, 1, SYMMEM_INT64, 0, 0, at, at, 0));
	MEASURE("the same, and synchronize", two_calls(2));
	MEASURE("the same in one call", one_call(2));
	DO(symmem_close(1));
}
