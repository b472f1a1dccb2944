/* A dispatch and a combine. */
#include "drive.h"

enum { TOKENS = 3, HIDDEN = 8, ONE = 0x3f80, TWO = 0x4000 };

/* check_counts checks what a dispatch wrote: each rank sends its first token to this rank, and its
 * last one to nobody. */
static void check_counts(const char *all, const struct symmem_route_layout *layout) {
	const int32_t *counts = (const int32_t *)(all + layout->counts);
	const int32_t *ids = (const int32_t *)(all + layout->ids);
	const uint16_t *rows = (const uint16_t *)(all + layout->rows);
	for (int r = 0; r < size; r++) {
		TRUE(counts[r] == (rank == r ? 2 : 1));
		for (int i = 0; i < TOKENS; i++) {
			int32_t id = ids[(r * TOKENS + i) * size];
			TRUE(i < counts[r] || id == -1);
		}
		TRUE(rows[r * TOKENS * HIDDEN] == ONE + r);
	}
	TRUE(counts[size] == size);
}

void route(void) {
	uint64_t world = open_with("{}");
	int32_t ids[TOKENS * 8];
	uint16_t rows[TOKENS * HIDDEN], back[TOKENS * HIDDEN];
	float weights[TOKENS * 8] = {0};
	for (int k = 0; k < size; k++) {
		ids[k] = k;                 /* all ranks */
		ids[size + k] = rank;       /* this rank */
		ids[2 * size + k] = 8 + k; /* no rank */
	}
	for (int i = 0; i < TOKENS * HIDDEN; i++) rows[i] = (uint16_t)(ONE + rank);
	struct symmem_route r = {
		.size = sizeof r, .experts = size, .top_k = size, .max_tokens = TOKENS, .hidden = HIDDEN,
		.type = SYMMEM_BFLOAT16, .tokens = TOKENS, .ids = ids, .weights = weights, .send = rows,
	};
	struct symmem_route_layout layout;
	DO(symmem_route_layout(&r, size, &layout));
	char *all;
	DO(symmem_alloc(0, (size_t)layout.bytes, 0, (void **)&all));
	r.recv = all;
	DO(symmem_dispatch(world, &r, 0));
	DO(symmem_stream_synchronize(0));
	check_counts(all, &layout);
	for (int i = 0; i < size * TOKENS * HIDDEN; i++) ((uint16_t *)all)[i] = ONE;
	r.send = all, r.recv = back;
	DO(symmem_combine(world, &r, 0));
	DO(symmem_stream_synchronize(0));
	uint16_t sums[] = {0, ONE, TWO, 0x4040, 0x4080};
	for (int i = 0; i < HIDDEN; i++)
		TRUE(back[i] == sums[size] && back[HIDDEN + i] == ONE && back[2 * HIDDEN + i] == 0);
	r.top_k = 17;
	WANT(SYMMEM_ERR_INVALID, symmem_dispatch(world, &r, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_route_layout(&r, size, &layout));
	WANT(SYMMEM_ERR_INVALID, symmem_route_layout(&r, 0, &layout));
	WANT(SYMMEM_ERR_INVALID, symmem_route_layout(&r, size, NULL));
	r.top_k = size, r.hidden = 1 << 19;
	WANT(SYMMEM_ERR_OUT_OF_RANGE, symmem_combine(world, &r, 0));
	r.size--;
	WANT(SYMMEM_ERR_INVALID, symmem_combine(world, &r, 0));
	DO(symmem_free(all));
	DO(symmem_close(0));
}
