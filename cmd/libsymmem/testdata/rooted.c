/* Operations with a root, and operations whose parts have different sizes. */
#include "drive.h"

enum { N = 30000 };

static int32_t all[8 * N], own[N], result[8 * N];

/* The size of a rank's part. Some parts are empty. */
static int64_t count_of(int r) { return r % 3 == 1 ? 0 : N - r; }

static void check_uneven(uint64_t world) {
	int64_t counts[8], offsets[8], total = 0;
	for (int r = 0; r < size; r++) {
		counts[r] = count_of(r);
		offsets[size - 1 - r] = (int64_t)r * N; /* the parts lie in another order */
	}
	for (int64_t i = 0; i < counts[rank]; i++) own[i] = rank * N + (int32_t)i;
	DO(symmem_all_gather_v(world, size, counts, NULL, SYMMEM_INT32, own, all, 0));
	DO(symmem_all_gather_v(world, size, counts, offsets, SYMMEM_INT32, own, result, 0));
	DO(symmem_stream_synchronize(0));
	for (int r = 0; r < size; r++)
		for (int64_t i = 0; i < counts[r]; i++) {
			TRUE(all[total++] == r * N + i);
			TRUE(result[offsets[r] + i] == r * N + i);
		}
	DO(symmem_reduce_scatter_v(world, size, counts, NULL, SYMMEM_INT32, SYMMEM_SUM, all, own, 0));
	DO(symmem_stream_synchronize(0));
	for (int64_t i = 0; i < counts[rank]; i++) TRUE(own[i] == size * (rank * N + i));
	WANT(SYMMEM_ERR_INVALID,
	     symmem_all_gather_v(world, size + 1, counts, NULL, SYMMEM_INT32, own, all, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_all_gather_v(world, size, NULL, NULL, SYMMEM_INT32, own, all, 0));
	CONTAINS("AllGatherV", symmem_explain(world, SYMMEM_ALL_GATHER_V, 4, SYMMEM_INT32, own, all,
	                                      sizeof text_, text_, &length_));
}

/* Only the root passes the buffer of all parts. */
static void check_rooted(uint64_t world, int root) {
	int32_t *whole = rank == root ? all : NULL;
	for (int i = 0; i < N; i++) own[i] = rank * N + i;
	DO(symmem_gather(world, N, SYMMEM_INT32, root, own, whole, 0));
	DO(symmem_stream_synchronize(0));
	for (int i = 0; whole && i < size * N; i++) TRUE(whole[i] == i);
	memset(own, 0, sizeof own);
	DO(symmem_scatter(world, N, SYMMEM_INT32, root, whole, own, 0));
	DO(symmem_reduce(world, N, SYMMEM_INT32, SYMMEM_SUM, root, 0, own, result, 0));
	DO(symmem_stream_synchronize(0));
	for (int i = 0; i < N; i++) {
		TRUE(own[i] == rank * N + i);
		if (whole) TRUE(result[i] == size * (size - 1) / 2 * N + size * i);
	}
}

void rooted(void) {
	uint64_t world = open_with("{}");
	check_uneven(world);
	for (int root = 0; root < size; root++) check_rooted(world, root);
	WANT(SYMMEM_ERR_INVALID, symmem_gather(world, 1, SYMMEM_INT32, size, own, all, 0));
	DO(symmem_barrier(world, 0));
	DO(symmem_stream_synchronize(0));
	int64_t counts[8] = {1, 1, 1, 1, 1, 1, 1, 1};
	if (rank == 0) counts[size - 1] = 2;
	int code = symmem_all_gather_v(world, size, counts, NULL, SYMMEM_INT32, own, all, 0);
	if (code == SYMMEM_OK) code = symmem_stream_synchronize(0);
	TRUE(code == (size > 1 ? SYMMEM_ERR_DIVERGENCE : SYMMEM_OK));
	if (size > 1) CONTAINS("counts 1", symmem_last_error(sizeof text_, text_, &length_));
	DO(symmem_close(1));
}
