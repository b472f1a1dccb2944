/* A dispatch, a permutation and a combine. */
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

/* permute permutes what check_counts has checked, and adds the rows up again. Weights are 1. The
 * second token of this rank has only ids of this rank's expert. */
static void permute(uint64_t world, const struct symmem_route *r, const char *all) {
	struct symmem_permute p = {
		.size = sizeof p, .experts = r->experts, .top_k = r->top_k, .max_tokens = TOKENS,
		.hidden = HIDDEN, .type = SYMMEM_BFLOAT16, .align = 4, .dispatched = all,
	};
	struct symmem_permute_layout layout;
	DO(symmem_permute_layout(&p, size, &layout));
	TRUE(layout.capacity == (size * TOKENS * size + 3) / 4 * 4);
	char *permuted, *returned;
	DO(symmem_alloc(0, (size_t)layout.bytes, 0, (void **)&permuted));
	DO(symmem_alloc(0, (size_t)(size * TOKENS * HIDDEN * 2), 0, (void **)&returned));
	p.permuted = permuted, p.computed = permuted + layout.rows, p.returned = returned;
	DO(symmem_permute(world, &p, 0));
	DO(symmem_unpermute(world, &p, 0));
	DO(symmem_stream_synchronize(0));
	const int32_t *experts = (const int32_t *)(permuted + layout.experts);
	const int32_t *firsts = (const int32_t *)(permuted + layout.firsts);
	int rows = 2 * size; /* one of each rank, and size of this rank's second token */
	TRUE(*(int32_t *)(permuted + layout.counts) == rows && firsts[0] == 0);
	TRUE(firsts[1] == (rows + 3) / 4 * 4);
	for (int i = 0; i < layout.capacity; i++) TRUE(experts[i] == (i < rows ? 0 : -1));
	const uint16_t *sums = (const uint16_t *)returned;
	for (int s = 0; s < size; s++) TRUE(sums[s * TOKENS * HIDDEN] == ONE + s);
	TRUE(((int32_t *)(permuted + layout.received))[rank] == 2);
	p.align = -1;
	WANT(SYMMEM_ERR_INVALID, symmem_permute(world, &p, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_permute_layout(&p, size, &layout));
	WANT(SYMMEM_ERR_INVALID, symmem_permute_layout(&p, size, NULL));
	p.size--;
	WANT(SYMMEM_ERR_INVALID, symmem_unpermute(world, &p, 0));
	DO(symmem_free(permuted));
	DO(symmem_free(returned));
}

void route(void) {
	uint64_t world = open_with("{}");
	int32_t ids[TOKENS * 8];
	uint16_t rows[TOKENS * HIDDEN], back[TOKENS * HIDDEN];
	float weights[TOKENS * 8];
	for (int i = 0; i < TOKENS * 8; i++) weights[i] = 1;
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
	permute(world, &r, all);
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
