/* Several worlds in one process. */
#include <dirent.h>
#include <unistd.h>

#include "drive.h"

uint64_t open_world(const char *name, const char *more, int place, int ranks) {
	char options[256];
	uint64_t world;
	int n = snprintf(options, sizeof options,
	                 "{\"rank\": %d, \"size\": %d, \"store\": \"unix:@drive-%d-%s\"%s}", place, ranks,
	                 (int)(ranks > 1 ? getppid() : getpid()), name, more);
	DO(symmem_world_open(n, options, &world));
	return world;
}

/* sum adds a number of each rank. */
static int32_t sum(uint64_t group, int32_t mine) {
	DO(symmem_all_reduce(group, 1, SYMMEM_INT32, SYMMEM_SUM, 0, &mine, &mine, group));
	DO(symmem_stream_synchronize(group));
	return mine;
}

static int entries(const char *folder) {
	DIR *d = opendir(folder);
	TRUE(d);
	int n = 0;
	while (readdir(d)) n++;
	closedir(d);
	return n;
}

/* mapped reports whether memory of symmem is mapped. */
static int mapped(void) {
	char line[512];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	TRUE(maps);
	while (fgets(line, sizeof line, maps)) found |= strstr(line, "memfd:symmem") != NULL;
	fclose(maps);
	return found;
}

/* some_ranks opens a world on the first two ranks only. */
static void some_ranks(void) {
	if (rank > 1) return;
	uint64_t pair = open_world("pair", "", 1 - rank, 2), again;
	TRUE(!symmem_is_open());
	TRUE(sum(pair, rank + 1) == 3);
	WANT(SYMMEM_ERR_NOT_OPEN, symmem_world(&again));
	DO(symmem_world_close(pair, 0));
	WANT(SYMMEM_ERR_NOT_OPEN, symmem_world_close(pair, 0));
}

/* shared_stream queues collectives of two worlds on one stream. Each reduces the result of the one
 * before. */
static void shared_stream(uint64_t a, uint64_t b) {
	enum { N = 1 << 18, ROUNDS = 6 };
	static int32_t x[N];
	int32_t want = 1;
	for (int i = 0; i < N; i++) x[i] = 1;
	for (int round = 0; round < ROUNDS; round++) {
		DO(symmem_all_reduce(round % 2 ? b : a, N, SYMMEM_INT32, SYMMEM_SUM, 0, x, x, 7));
		want *= size;
	}
	uint64_t event;
	DO(symmem_event_record(7, &event));
	DO(symmem_event_synchronize(event));
	TRUE(symmem_event_done(event));
	DO(symmem_event_close(event));
	DO(symmem_stream_synchronize(7));
	for (int i = 0; i < N; i++) TRUE(x[i] == want);
}

/* memory allocates in a pool of a world. */
static void memory_of(uint64_t world, uint64_t other) {
	int pool;
	void *x;
	DO(symmem_pool_open(world, 0, NULL, &pool));
	TRUE(pool > 0);
	DO(symmem_alloc(pool, 4096, 0, &x));
	DO(symmem_scope_end(world, 0, NULL));
	TRUE(symmem_is_symmetric(world, 4096, x) && !symmem_is_symmetric(other, 4096, x));
	WANT(SYMMEM_ERR_INVALID, symmem_register_pending(other, pool, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_reserve(pool, 4096, other));
	CONTAINS("\"live\":true", symmem_locate(x, sizeof text_, text_, &length_));
	WANT(SYMMEM_ERR_LIVE, symmem_world_close(world, 0));
	DO(symmem_free(x));
	WANT(SYMMEM_ERR_FREED, symmem_all_reduce(other, 1, SYMMEM_INT32, 0, 0, x, x, 0));
}

/* worlds opens worlds one after the other and closes the first while the others continue. */
void worlds(void) {
	uint64_t first = open_world("first", "", 0, 1);
	DO(symmem_world_close(first, 0));
	int files = entries("/proc/self/fd"); /* with those that Go keeps */
	some_ranks();
	uint64_t trainer = open_with("{}"), group;
	TRUE(sum(trainer, rank) == size * (size - 1) / 2);
	uint64_t engine = open_world("engine", "", size - 1 - rank, size);
	TRUE(engine != trainer);
	char place[32];
	snprintf(place, sizeof place, "\"rank\":%d", size - 1 - rank);
	CONTAINS(place, symmem_world_describe(engine, sizeof text_, text_, &length_));
	CONTAINS("\"pools\":[]", symmem_world_stats(engine, sizeof text_, text_, &length_));
	shared_stream(trainer, engine);
	memory_of(engine, trainer);
	TRUE(mapped());
	/* In the engine's world, rank 0 is the last of the trainer's. */
	int32_t ranks[] = {0, 1};
	if (rank >= size - 2) {
		DO(symmem_world_group_open(engine, 4, "last", 2, ranks, 0, &group));
		TRUE(sum(group, rank) == 2 * size - 3);
		WANT(SYMMEM_ERR_INVALID, symmem_world_close(group, 0));
		DO(symmem_group_close(group));
	}
	WANT(SYMMEM_ERR_INVALID, symmem_group_close(engine));
	DO(symmem_close(0));
	WANT(SYMMEM_ERR_CLOSED, symmem_barrier(trainer, 0));
	TRUE(sum(engine, rank) == size * (size - 1) / 2);
	trainer = open_with("{}");
	TRUE(sum(trainer, 1) == size);
	DO(symmem_world_set_check(engine, SYMMEM_CHECK_OFF));
	DO(symmem_world_close(engine, 0));
	TRUE(sum(trainer, 2) == 2 * size);
	DO(symmem_world_close(trainer, 0));
	TRUE(!symmem_is_open());
	for (int i = 0; entries("/proc/self/fd") != files; i++) {
		TRUE(i < 1000); /* connections end in the background */
		usleep(10000);
	}
	TRUE(!mapped());
}

/* worlds_lost ends the last rank, which belongs to one of two worlds. */
void worlds_lost(void) {
	uint64_t trainer = open_with("{}"), engine = 0;
	if (rank < size - 1) engine = open_world("engine", "", rank, size - 1);
	TRUE(sum(trainer, 1) == size);
	if (rank == size - 1) _Exit(0);
	int32_t x = 1;
	int code = symmem_all_reduce(trainer, 1, SYMMEM_INT32, 0, 0, &x, &x, 7);
	/* The stream of the failed collective also has work of the other world. */
	int32_t y = 1;
	DO(symmem_all_reduce(engine, 1, SYMMEM_INT32, 0, 0, &y, &y, 7));
	int end = symmem_stream_synchronize(7);
	WANT(SYMMEM_ERR_RANK_LOST, code ? code : end);
	TRUE(y == size - 1);
	TRUE(sum(engine, rank) == (size - 1) * (size - 2) / 2);
	DO(symmem_group_error(engine));
	WANT(SYMMEM_ERR_RANK_LOST, symmem_group_error(trainer));
	(void)symmem_close(1);
	TRUE(sum(engine, 2) == 2 * (size - 1));
	DO(symmem_world_close(engine, 0));
}

/* timeouts lets a rank be late in groups with short timeouts, and not in the world. */
void timeouts(void) {
	uint64_t world = open_with("{}"), group, other, event;
	int32_t ranks[] = {0, 1}, x = 1;
	DO(symmem_world_group_open(world, 5, "short", 2, ranks, 700, &group));
	DO(symmem_group_open(4, "long", 2, ranks, &other));
	CONTAINS("\"timeout_ms\":700", symmem_group_describe(group, sizeof text_, text_, &length_));
	WANT(SYMMEM_ERR_INVALID, symmem_group_set_timeout(other, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_group_set_timeout(other, -1));
	WANT(SYMMEM_ERR_INVALID,
	     symmem_world_group_open(world, 1, "x", 2, ranks, 1000000000, &group));
	if (rank == 0) {
		DO(symmem_all_reduce(group, 1, SYMMEM_INT32, 0, 0, &x, &x, 3));
		DO(symmem_event_record(3, &event));
		WANT(SYMMEM_ERR_TIMEOUT, symmem_event_wait(event, 1));
		DO(symmem_group_error(group)); /* the work continues */
		WANT(SYMMEM_ERR_TIMEOUT, symmem_event_wait(event, 60000));
		CONTAINS("\"missing\":[1]", symmem_last_error_json(sizeof text_, text_, &length_));
		WANT(SYMMEM_ERR_TIMEOUT, symmem_stream_synchronize(3));
		DO(symmem_group_set_timeout(other, 300));
		WANT(SYMMEM_ERR_TIMEOUT, symmem_step(other, 1, "s", 0));
		CONTAINS("\"missing\":[1]", symmem_last_error_json(sizeof text_, text_, &length_));
	}
	TRUE(sum(world, 1) == size);
	if (rank == 1) WANT(SYMMEM_ERR_TIMEOUT, symmem_check(group));
	(void)symmem_close(1);
}
