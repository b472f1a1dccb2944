/* Memory: sums over it, groups, pools, and frees that come in another order on each rank. */
#include <sched.h>

#include "drive.h"

enum { N = 100000 };

static void fill(float *at, float value) {
	for (int i = 0; i < N; i++) at[i] = value;
}

static void holds(const float *at, float value) {
	for (int i = 0; i < N; i++) TRUE(at[i] == value);
}

static float *floats(int pool) {
	void *at = NULL;
	DO(symmem_alloc(pool, N * sizeof(float), 0, &at));
	TRUE((uintptr_t)at % 512 == 0);
	return at;
}

static void signal_words(uint64_t world) {
	uint64_t words[64] = {0};
	WANT(SYMMEM_ERR_INVALID, symmem_signal_words_open(world, 0, (size_t)size, words));
	DO(symmem_signal_words_open(world, 3, (size_t)size, words));
	uint32_t *own = (uint32_t *)(uintptr_t)words[rank];
	uint32_t *next = (uint32_t *)(uintptr_t)words[(rank + 1) % size];
	CONTAINS("{\"pool\":-2,", symmem_locate(own, sizeof text_, text_, &length_));
	CONTAINS("{\"pool\":-2,", symmem_stats(sizeof text_, text_, &length_));
	for (uint32_t round = 1; round <= 100; round++) {
		TRUE(own[0] == 0 && own[1] <= round && own[2] == 0);
		__atomic_store_n(next + 1, round, __ATOMIC_RELEASE);
		while (__atomic_load_n(own + 1, __ATOMIC_ACQUIRE) != round) sched_yield();
		DO(symmem_barrier(world, 0));
		DO(symmem_stream_synchronize(0));
	}
	WANT(SYMMEM_ERR_FOREIGN, symmem_signal_words_close(own + 1));
	DO(symmem_signal_words_close(own));
	WANT(SYMMEM_ERR_FOREIGN, symmem_signal_words_close(own));
}

/* Signals through a pad as the functions of symmem_device.cuh do: see layout.py. */
void pads(void) {
	uint64_t world = open_with("{}");
	enum { FAILED = 0, NUMBER = 4, TIMEOUT = 16, PEERS = 256, REPORTS = 512, SLOTS = 274432 };
	enum { CHANNEL = 3, SITE = 1, ROW = 256 };
	const char *const names[] = {"first", "second"};
	uint64_t pad = 0, second = 0;
	WANT(SYMMEM_ERR_INVALID, symmem_pad_open(world, 2, NULL, &pad));
	WANT(SYMMEM_ERR_INVALID, symmem_pad_open(world, 2, names, NULL));
	WANT(SYMMEM_ERR_INVALID, symmem_pad_open(world, 4097, names, &pad));
	WANT(SYMMEM_ERR_INVALID, symmem_pad_open(world, (size_t)1 << 40, names, &pad));
	DO(symmem_pad_open(world, 2, names, &pad));
	DO(symmem_pad_open(world, 0, NULL, &second));
	char *own = (char *)(uintptr_t)pad;
	const uint32_t *head = (const uint32_t *)(own + NUMBER);
	TRUE(head[0] == 1 && head[1] == (uint32_t)rank && head[2] == (uint32_t)size);
	TRUE(*(const uint32_t *)((const char *)(uintptr_t)second + NUMBER) == 2);
	TRUE(*(const uint64_t *)(own + TIMEOUT) > 0);
	const uint64_t *peers = (const uint64_t *)(own + PEERS);
	TRUE(peers[rank] == pad && (size == 1 || (peers[size - 1] != 0 && peers[size] == 0)));
	DO(symmem_pad_check(pad));
	char text[8];
	size_t length = 1;
	DO(symmem_pad_explain(pad, sizeof text, text, &length));
	TRUE(length == 0);
	DO(symmem_barrier(world, 0));
	DO(symmem_stream_synchronize(0));
	if (rank == 0) {
		/* Write a signal that the last rank does not take, and reports of a failed wait. */
		char *last = (char *)(uintptr_t)peers[size - 1];
		uint64_t word = (uint64_t)1 << 32 | 1 << 24 | CHANNEL << 12 | SITE;
		__atomic_store_n((uint64_t *)(last + SLOTS + (3 * CHANNEL + 2) * ROW), word, __ATOMIC_RELEASE);
		for (int r = 0; r < size; r++) {
			char *at = (char *)(uintptr_t)peers[r];
			uint32_t *report = (uint32_t *)(at + REPORTS);
			report[1] = (uint32_t)(size - 1);
			report[6] = CHANNEL, report[7] = SITE, report[8] = 2;
			report[0] = 1; /* a time-out */
			*(uint32_t *)(at + FAILED) = 1;
		}
	}
	DO(symmem_barrier(world, 0));
	DO(symmem_stream_synchronize(0));
	if (rank == size - 1) {
		CONTAINS("rank 0 has signalled on channel 3 at site 1 (\"second\")",
		         symmem_pad_explain(pad, sizeof text_, text_, &length_));
	}
	WANT(SYMMEM_ERR_TIMEOUT, symmem_pad_check(pad));
	CONTAINS("not signalled on channel 3 at site 1 (\"second\") of group world",
	         symmem_last_error(sizeof text_, text_, &length_));
	DO(symmem_pad_check(second));
	DO(symmem_barrier(world, 0));
	DO(symmem_stream_synchronize(0));
	DO(symmem_pad_close(pad));
	DO(symmem_pad_close(second));
	WANT(SYMMEM_ERR_FOREIGN, symmem_pad_check(pad));
	WANT(SYMMEM_ERR_FOREIGN, symmem_pad_close(pad));
	DO(symmem_close(0));
}

void sums(void) {
	uint64_t world = open_with("{\"check\": \"every\"}");
	const volatile int64_t *words = symmem_generation();
	int64_t before = words[SYMMEM_WORD_PENDING], windows = words[SYMMEM_WORD_WINDOWS], seen = -1;
	float *a = floats(0), *b = floats(0);
	TRUE(words[SYMMEM_WORD_PENDING] > before);
	TRUE(!symmem_is_symmetric(world, N * sizeof *a, a));
	DO(symmem_scope_end(world, 0, &seen));
	TRUE(seen == words[SYMMEM_WORD_PENDING] && words[SYMMEM_WORD_WINDOWS] > windows);
	TRUE(symmem_is_symmetric(world, N * sizeof *a, a));
	TRUE(!symmem_is_symmetric(world, (size_t)1 << 40, a));
	uint64_t peers[64] = {0};
	DO(symmem_peer_addresses(world, 4, a + 3, (size_t)size, peers));
	TRUE(peers[rank] == (uint64_t)(uintptr_t)(a + 3) && peers[(rank + 1) % size] != 0);
	WANT(SYMMEM_ERR_INVALID, symmem_peer_addresses(world, 4, a, (size_t)size + 1, peers));
	WANT(SYMMEM_ERR_INVALID, symmem_peer_addresses(world, 4, peers, (size_t)size, peers));
	uint64_t comm = 0, window = 0, offset = 0;
	WANT(SYMMEM_ERR_UNSUPPORTED, symmem_nccl_window(world, 4, a, &comm, &window, &offset));
	WANT(SYMMEM_ERR_INVALID, symmem_nccl_window(world, 4, peers, &comm, &window, &offset));
	WANT(SYMMEM_ERR_INVALID, symmem_nccl_window(world, 4, a, &comm, &window, NULL));
	signal_words(world);
	DO(symmem_scope_end(world, 0, &seen));
	float *more = floats(0);
	TRUE(seen == words[SYMMEM_WORD_PENDING]); /* what fits changes nothing */
	int64_t pair[2];
	size_t count = 0;
	DO(symmem_windows(world, 1, pair, &count));
	TRUE(count == 1 && (int64_t)(uintptr_t)a >= pair[0] &&
	     (int64_t)(uintptr_t)(more + N) <= pair[0] + pair[1]);
	CONTAINS("\"path\":\"window\"", symmem_explain(world, SYMMEM_ALL_REDUCE, N, SYMMEM_FLOAT32, a, b,
	                                               sizeof text_, text_, &length_));
	CONTAINS("\"live\":true", symmem_locate(a + 5, sizeof text_, text_, &length_));

	fill(a, (float)(rank + 1));
	float sum = (float)(size * (size + 1) / 2);
	DO(symmem_all_reduce(world, N, SYMMEM_FLOAT32, SYMMEM_SUM, SYMMEM_PATH_DEFAULT, a, b, 0));
	DO(symmem_stream_synchronize(0));
	holds(b, sum);
	for (int path = SYMMEM_PATH_AUTO; path <= SYMMEM_PATH_WINDOW; path++) {
		fill(b, 0);
		DO(symmem_all_reduce(world, N, SYMMEM_FLOAT32, SYMMEM_MAX, path, a, b, 77));
		DO(symmem_stream_synchronize(77));
		holds(b, (float)size);
	}
	static float plain[N], out[N];
	fill(plain, 2);
	DO(symmem_all_reduce(world, N, SYMMEM_FLOAT32, SYMMEM_PROD, SYMMEM_PATH_DEFAULT, plain, out, 0));
	DO(symmem_stream_synchronize(0));
	holds(out, (float)(1 << size));
	DO(symmem_premul_sum(world, SYMMEM_ALL_REDUCE, N, SYMMEM_FLOAT32, 0.25, 0, SYMMEM_PATH_DEFAULT, a,
	                     b, 0));
	DO(symmem_stream_synchronize(0));
	holds(b, sum / 4);
	static uint64_t ids[3], largest[3]; /* the maximum of unsigned integers */
	ids[0] = UINT64_MAX - (uint64_t)rank;
	DO(symmem_all_reduce(world, 3, SYMMEM_UINT64, SYMMEM_MAX, SYMMEM_PATH_DEFAULT, ids, largest, 0));
	DO(symmem_stream_synchronize(0));
	TRUE(largest[0] == UINT64_MAX && largest[1] == 0);

	int part = N / size;
	DO(symmem_all_gather(world, part, SYMMEM_FLOAT32, SYMMEM_PATH_DEFAULT, a, b, 0));
	DO(symmem_stream_synchronize(0));
	for (int i = 0; i < part * size; i++) TRUE(b[i] == (float)(i / part + 1));
	DO(symmem_reduce_scatter(world, part, SYMMEM_FLOAT32, SYMMEM_SUM, SYMMEM_PATH_DEFAULT, a, b, 0));
	DO(symmem_stream_synchronize(0));
	for (int i = 0; i < part; i++) TRUE(b[i] == sum);
	DO(symmem_broadcast(world, N, SYMMEM_FLOAT32, size - 1, SYMMEM_PATH_DEFAULT, a, b, 0));
	DO(symmem_stream_synchronize(0));
	holds(b, (float)size);
	DO(symmem_all_to_all(world, part, SYMMEM_FLOAT32, SYMMEM_PATH_DEFAULT, a, b, 0));
	DO(symmem_barrier(world, 0));
	DO(symmem_stream_synchronize(0));
	for (int i = 0; i < part * size; i++) TRUE(b[i] == (float)(i / part + 1));
	DO(symmem_check(world));
	CONTAINS("\"window\":", symmem_stats(sizeof text_, text_, &length_));
	CONTAINS("\"plain\":", symmem_stats(sizeof text_, text_, &length_));
	DO(symmem_free(a));
	DO(symmem_free(b));
	DO(symmem_free(more));
	DO(symmem_trim(0, 0));
	TRUE(symmem_windows(world, 0, NULL, &count) == SYMMEM_OK && count == 0);
	DO(symmem_close(0));
}

void groups(void) {
	uint64_t world = open_with("{}"), pair, again;
	int32_t ranks[2] = {rank / 2 * 2, rank / 2 * 2 + 1};
	DO(symmem_group_open(2, "tp", 2, ranks, &pair));
	CONTAINS("\"name\":\"tp\"", symmem_group_describe(pair, sizeof text_, text_, &length_));
	float *a = floats(0);
	fill(a, (float)rank);
	/* The group registers memory of the world's pool at its first collective there. */
	DO(symmem_all_reduce(pair, N, SYMMEM_FLOAT32, SYMMEM_SUM, SYMMEM_PATH_DEFAULT, a, a, 0));
	DO(symmem_stream_synchronize(0));
	holds(a, (float)(ranks[0] + ranks[1]));
	TRUE(symmem_is_symmetric(pair, 4, a) && !symmem_is_symmetric(world, 4, a));
	DO(symmem_group_set_path(pair, SYMMEM_PATH_PLAIN));
	CONTAINS("\"path\":\"plain\"", symmem_explain(pair, SYMMEM_ALL_REDUCE, N, SYMMEM_FLOAT32, a, a,
	                                              sizeof text_, text_, &length_));
	DO(symmem_set_check(SYMMEM_CHECK_REGISTRATION));
	CONTAINS("\"check\":\"registration\"", symmem_describe(sizeof text_, text_, &length_));
	DO(symmem_set_check(SYMMEM_CHECK_EVERY));
	DO(symmem_barrier(pair, 0));
	DO(symmem_stream_synchronize(0));
	DO(symmem_group_error(pair));
	DO(symmem_group_close(pair));
	WANT(SYMMEM_ERR_CLOSED, symmem_barrier(pair, 0));
	WANT(SYMMEM_ERR_CLOSED, symmem_group_close(pair));
	TRUE(!symmem_is_symmetric(pair, 4, a));
	/* The name may come back, and the handle does not. */
	DO(symmem_group_open(2, "tp", 2, ranks, &again));
	TRUE(again != pair);
	DO(symmem_scope_end(again, 0, NULL));
	TRUE(symmem_is_symmetric(again, 4, a));
	DO(symmem_barrier(world, 0));
	DO(symmem_close(1));
}

void pools(void) {
	uint64_t world = open_with("{\"pool\": {\"first_segment\": 2097152}}");
	int pool = -1;
	const char *options = "{\"capacity\": 33554432}";
	DO(symmem_pool_open(world, strlen(options), options, &pool));
	TRUE(pool == 1);
	/* PyTorch's segments of 2 and 20 MiB share few windows. */
	void *segments[40];
	for (int i = 0; i < 40; i++) {
		segments[i] = symmem_torch_alloc((i % 4 ? 2u : 20u) << 20, 0, NULL);
		TRUE(segments[i]);
	}
	for (int i = 1; i < 40; i++) {
		if (i % 4 > 1) TRUE((char *)segments[i] > (char *)segments[i - 1]);
	}
	DO(symmem_scope_end(world, 0, NULL));
	size_t count;
	DO(symmem_windows(world, 0, NULL, &count));
	TRUE(count <= 8);
	/* Each pool has allocator functions of its own; the thread's choice is for the common one. */
	void *own = symmem_torch_alloc_1(2 << 20, 0, NULL);
	CONTAINS("\"pool\":1", symmem_locate(own, sizeof text_, text_, &length_));
	TRUE(symmem_select(1) == 0);
	void *chosen = symmem_torch_alloc(2 << 20, 0, NULL);
	CONTAINS("\"pool\":1", symmem_locate(chosen, sizeof text_, text_, &length_));
	TRUE(symmem_select(-1) == 1);
	void *local = symmem_torch_alloc(2 << 20, 0, NULL);
	TRUE(local);
	TRUE(symmem_select(99) == SYMMEM_SELECT_ERROR && symmem_select(0) == -1);
	TRUE(!symmem_torch_alloc_1(64u << 20, 0, NULL)); /* over the capacity */
	TRUE(symmem_last_error(0, NULL, NULL) == SYMMEM_ERR_OUT_OF_MEMORY);
	CONTAINS("\"memory\":{\"requested\":", symmem_last_error_json(sizeof text_, text_, &length_));
	TRUE(!symmem_torch_alloc_9(2 << 20, 0, NULL)); /* there is no such pool */
	WANT(SYMMEM_ERR_LIVE, symmem_pool_close(1, 0));
	symmem_torch_free(own, 2 << 20, 0, NULL);
	symmem_torch_free(chosen, 2 << 20, 0, NULL);
	DO(symmem_pool_close(1, 0));
	DO(symmem_reserve_on(0, 64u << 20, 5, world));
	const volatile int64_t *words = symmem_generation();
	int64_t before = words[SYMMEM_WORD_PENDING];
	void *reserved;
	DO(symmem_alloc(0, 64u << 20, 5, &reserved));
	TRUE(words[SYMMEM_WORD_PENDING] == before && symmem_is_symmetric(world, 64u << 20, reserved));
	WANT(SYMMEM_ERR_LIVE, symmem_close(0));
	DO(symmem_close(1));
	symmem_torch_free(segments[0], 20 << 20, 0, NULL); /* the memory went with the library */
	TRUE(words[SYMMEM_WORD_REFUSED] == 0);
}

void pending(void) {
	uint64_t world = open_with("{\"check_interval_ms\": -1}");
	int pool = -1;
	DO(symmem_pool_open(world, 0, NULL, &pool));
	float *first = floats(0), *second = floats(pool);
	DO(symmem_register_pending(world, pool, 0));
	TRUE(symmem_is_symmetric(world, 4, second) && !symmem_is_symmetric(world, 4, first));
	int64_t windows = symmem_generation()[SYMMEM_WORD_WINDOWS];
	DO(symmem_register_pending(world, pool, 0)); /* nothing is new */
	TRUE(symmem_generation()[SYMMEM_WORD_WINDOWS] == windows);
	DO(symmem_register_pending(world, 0, 0));
	TRUE(symmem_is_symmetric(world, 4, first));
	WANT(SYMMEM_ERR_INVALID, symmem_register_pending(12345678, pool, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_register_pending(world, SYMMEM_POOLS, 0));
	WANT(SYMMEM_ERR_CLOSED, symmem_register_pending(world, pool + 1, 0));
	if (size > 1) {
		void *other;
		DO(symmem_alloc(pool, (size_t)(rank ? 512 : 256) << 20, 0, &other)); /* new on all ranks */
		WANT(SYMMEM_ERR_DIVERGENCE, symmem_register_pending(world, pool, 0));
		TRUE(!symmem_is_symmetric(world, 4, other));
	}
	DO(symmem_close(1));
}

void freed_order(void) {
	uint64_t world = open_with("{}");
	void *at[8];
	for (int i = 0; i < 8; i++) {
		TRUE(at[i] = symmem_torch_alloc(2 << 20, 0, (void *)(uintptr_t)(i % 2)));
	}
	/* PyTorch gives segments back in an order that depends on addresses. */
	for (int i = 0; i < 8; i++) symmem_torch_free(at[rank % 2 ? 7 - i : i], 2 << 20, 0, NULL);
	TRUE(at[0] = symmem_torch_alloc(4 << 20, 0, NULL));
	DO(symmem_scope_end(world, 0, NULL));
	DO(symmem_check(world));
	symmem_torch_free(at[0], 4 << 20, 0, NULL);
	symmem_torch_free(at[0], 4 << 20, 0, NULL);
	TRUE(symmem_last_error(0, NULL, NULL) == SYMMEM_ERR_DOUBLE_FREE);
	TRUE(symmem_generation()[SYMMEM_WORD_REFUSED] == 1);
	DO(symmem_check(world));
	DO(symmem_close(0));
}
