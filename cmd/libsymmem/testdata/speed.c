/* What calls cost, for people: nothing is asserted. */
#include <time.h>

#include "drive.h"

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

#define MEASURE(name, call)                                                                        \
	do {                                                                                           \
		double best = 1e18;                                                                        \
		for (int round = 0; round < 20; round++) {                                                 \
			double begin = now();                                                                  \
			for (int i = 0; i < 10000; i++) call;                                                  \
			double each = (now() - begin) / 10000;                                                 \
			if (each < best) best = each;                                                          \
		}                                                                                          \
		printf("%-28s %7.1f ns\n", name, best);                                                    \
	} while (0)

void speed(void) {
	uint64_t world = open_with("{}");
	void *at;
	volatile int64_t sink = 0;
	DO(symmem_alloc(0, 4096, 0, &at));
	DO(symmem_scope_end(world, 0, NULL));
	MEASURE("read a word", sink += symmem_generation()[0]);
	MEASURE("is_open (enters Go)", sink += symmem_is_open());
	MEASURE("is_symmetric", sink += symmem_is_symmetric(world, 64, at));
	MEASURE("scope_end, nothing new", (void)symmem_scope_end(world, 0, NULL));
	MEASURE("torch_alloc and torch_free", symmem_torch_free(symmem_torch_alloc(2 << 20, 0, NULL), 0, 0,
	                                                        NULL));
	if (size == 1) MEASURE("all_reduce of 8 bytes, 1 rank",
	                       (void)symmem_all_reduce(world, 1, SYMMEM_INT64, 0, 0, at, at, 0));
	DO(symmem_close(1));
}
