/* What must never be silent: misuse, and ranks that differ, come late, or end. */
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "drive.h"

/* A fault is counted a moment after the call that meets it may have returned. */
static int one_fault_is_counted(void) {
	const volatile int64_t *count = &symmem_generation()[SYMMEM_WORD_FAULTS];
	for (int i = 0; i < 10000 && *count == 0; i++) usleep(1000);
	return *count == 1;
}

void misuse(void) {
	char text[64];
	size_t length = 99;
	void *at = (void *)7;
	uint64_t group = 7;
	int pool = 7;
	TRUE(symmem_abi_version() == SYMMEM_ABI_VERSION && !symmem_is_open());
	TRUE(symmem_last_error(sizeof text, text, &length) == SYMMEM_OK && length == 0 && !text[0]);
	WANT(SYMMEM_ERR_NOT_OPEN, symmem_alloc(0, 8, 0, &at));
	TRUE(!symmem_torch_alloc(2 << 20, 0, NULL) && at == (void *)7);
	WANT(SYMMEM_ERR_NOT_OPEN, symmem_world(&group));
	DO(symmem_close(0));
	WANT(SYMMEM_ERR_INVALID, symmem_open(7, "{\"a\": 1"));
	WANT(SYMMEM_ERR_INVALID, symmem_open(10, "{\"rnak\": 1}"));
	WANT(SYMMEM_ERR_INVALID, symmem_open(5, NULL));
	WANT(SYMMEM_ERR_INVALID, symmem_open((size_t)-1, "{}"));
	WANT(SYMMEM_ERR_INVALID, symmem_open(21, "{\"backend\": \"quantum\"}"));
	WANT(SYMMEM_ERR_INVALID, symmem_open(19, "{\"timeout_ms\": -100}"));
	uint64_t world = open_with("");
	WANT(SYMMEM_ERR_INVALID, symmem_open(0, NULL));
	CONTAINS("already open", symmem_last_error(sizeof text_, text_, &length_));
	TRUE(symmem_describe(8, text, &length) == SYMMEM_ERR_SHORT && length > 8 && strlen(text) == 7);
	DO(symmem_describe(0, NULL, &length));
	WANT(SYMMEM_ERR_INVALID, symmem_describe(0, NULL, NULL));
	WANT(SYMMEM_ERR_SIZE, symmem_alloc(0, 0, 0, &at));
	WANT(SYMMEM_ERR_SIZE, symmem_alloc(0, (size_t)-1, 0, &at));
	WANT(SYMMEM_ERR_SIZE, symmem_alloc(0, (size_t)1 << 63, 0, &at));
	WANT(SYMMEM_ERR_OUT_OF_MEMORY, symmem_alloc(0, (size_t)1 << 45, 0, &at));
	WANT(SYMMEM_ERR_SIZE, symmem_reserve(0, (size_t)-1, world));
	WANT(SYMMEM_ERR_INVALID, symmem_alloc(0, 8, 0, NULL));
	WANT(SYMMEM_ERR_INVALID, symmem_alloc(SYMMEM_POOLS, 8, 0, &at));
	WANT(SYMMEM_ERR_CLOSED, symmem_alloc(3, 8, 0, &at));
	TRUE(at == (void *)7);
	DO(symmem_alloc(0, 4096, 0, &at));
	WANT(SYMMEM_ERR_FOREIGN, symmem_free(&at));
	WANT(SYMMEM_ERR_FOREIGN, symmem_free(NULL));
	WANT(SYMMEM_ERR_DOUBLE_FREE, symmem_free((char *)at + 512)); /* inside, but nobody's */
	DO(symmem_free(at));
	WANT(SYMMEM_ERR_DOUBLE_FREE, symmem_free(at));
	DO(symmem_alloc(0, 4096, 0, &at));
	WANT(SYMMEM_ERR_INVALID, symmem_barrier(0, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_barrier(12345678, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_group_close(world));
	WANT(SYMMEM_ERR_INVALID, symmem_pool_close(0, 1));
	int32_t bad[2] = {0, 1000000};
	WANT(SYMMEM_ERR_INVALID, symmem_group_open(1, "g", 2, bad, &group));
	WANT(SYMMEM_ERR_INVALID, symmem_group_open(1, "g", (size_t)-1, bad, &group));
	WANT(SYMMEM_ERR_INVALID, symmem_group_open(1, "g", 1, NULL, &group));
	WANT(SYMMEM_ERR_INVALID, symmem_pool_open(world, 14, "{\"capacity\": x}", &pool));
	WANT(SYMMEM_ERR_INVALID, symmem_collective(world, 99, 1, 0, 0, 0, 0, at, at, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_all_reduce(world, -1, 0, 0, 0, at, at, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_all_reduce(world, 1, 99, 0, 0, at, at, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_all_reduce(world, 1, 0, 256, 0, at, at, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_all_reduce(world, 1, 0, 0, 99, at, at, 0));
	WANT(SYMMEM_ERR_OUT_OF_RANGE, symmem_all_reduce(world, INT64_MAX, 0, 0, 0, at, at, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_all_reduce(world, 1, 0, 0, 0, NULL, NULL, 0));
	WANT(SYMMEM_ERR_OUT_OF_RANGE, symmem_all_reduce(world, 513, 0, 0, 0, at, at, 0));
	WANT(SYMMEM_ERR_OUT_OF_RANGE, symmem_all_reduce(world, (int64_t)1 << 40, 0, 0, 0, at, at, 0));
	WANT(SYMMEM_ERR_FREED, symmem_all_reduce(world, 1, 0, 0, 0, (char *)at + 4096, at, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_all_reduce(world, 1, 0, SYMMEM_PREMUL_SUM, 0, at, at, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_premul_sum(world, SYMMEM_ALL_REDUCE, 1, SYMMEM_INT8, 2, 0, 0, at,
	                                           at, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_broadcast(world, 1, 0, 1000, 0, at, at, 0));
	for (int root = 0; root < 2; root++) /* overlapping, and not in place: on the root and elsewhere */
		WANT(SYMMEM_ERR_INVALID, symmem_collective(world, SYMMEM_REDUCE, 2, SYMMEM_FLOAT32, SYMMEM_SUM,
		                                           root, 0, at, (char *)at + 4, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_all_reduce_rms_norm(world, 1, 0, 0, at, at, at, at, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_all_reduce_rms_norm(world, INT64_MAX, 8, 0, at, at, at, at, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_all_reduce_rms_norm(world, 1, 8, 0, at, at, at, at, 0));
	WANT(SYMMEM_ERR_OUT_OF_RANGE, symmem_all_reduce_rms_norm(world, 1, 4096, 0, at, at, at, at, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_all_reduce_rms_norm(world, 1, 8, 0, at, (char *)at + 8,
	                                                    (char *)at + 32, at, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_set_check(99));
	WANT(SYMMEM_ERR_INVALID, symmem_note(0, -1, 0));
	WANT(SYMMEM_ERR_UNSUPPORTED, symmem_attach(world, 1234, 1, "c", &group));
	WANT(SYMMEM_ERR_CLOSED, symmem_detach(1234, 1));
	WANT(SYMMEM_ERR_FOREIGN, symmem_locate(&at, 0, NULL, &length));
	WANT(SYMMEM_ERR_FOREIGN, symmem_plug_forget(1));
	TRUE(nccl_allocator_register_segments_with_comm(0) != 0);
	WANT(SYMMEM_ERR_INVALID, symmem_windows(world, 4, NULL, &length));
	TRUE(!symmem_is_symmetric(world, (size_t)-1, at) && group == 7 && pool == 7);
	DO(symmem_barrier(world, 0)); /* none of it has hurt */
	DO(symmem_close(1));
	WANT(SYMMEM_ERR_NOT_OPEN, symmem_barrier(world, 0));
}

/* An address in the first page makes the Go code that reads it panic, as a mistake of its own
 * would. */
void panics(void) {
	uint64_t world = open_with("{}"), group = 7;
	const int32_t *nowhere = (const int32_t *)(uintptr_t)64;
	for (int i = 0; i < 3; i++) {
		WANT(SYMMEM_ERR_PANIC, symmem_group_open(1, "g", 2, nowhere, &group));
		CONTAINS("panic inside symmem", symmem_last_error(sizeof text_, text_, &length_));
		CONTAINS("\"name\":\"PANIC\"", symmem_last_error_json(sizeof text_, text_, &length_));
		CONTAINS("goGroupOpen", symmem_last_error_json(sizeof text_, text_, &length_));
		TRUE(group == 7);
		DO(symmem_barrier(world, 0)); /* nothing is locked or lost */
		DO(symmem_stream_synchronize(0));
	}
	DO(symmem_check(world));
	DO(symmem_close(0));
}

/* at_line says for which line of an imaginary Python program the thread works. */
static void at_line(const char *line) {
	uint32_t site = 0;
	DO(symmem_site(strlen(line), line, &site));
	(void)symmem_set_site(site);
}

void diverge(void) {
	uint64_t world = open_with("{\"callsites\": true, \"check_interval_ms\": -1}");
	void *at;
	TRUE(symmem_callsites());
	at_line("model.py:10");
	struct symmem_value batch = {world, SYMMEM_VALUE_AGREE, 0, 10, "batch size"};
	const struct symmem_value summed = {world, SYMMEM_VALUE_SUM, 0, 3, "sum"};
	int64_t number = 8, sum = 8;
	DO(symmem_value(&batch, &number));
	DO(symmem_value(&summed, &sum));
	TRUE(number == 8 && sum == 8 * size);
	number += rank;
	WANT(SYMMEM_ERR_DIVERGENCE, symmem_value(&batch, &number));
	CONTAINS("\"kind\":\"value\"", symmem_last_error_json(sizeof text_, text_, &length_));
	CONTAINS("\"site\":\"model.py:10\"", symmem_last_error_json(sizeof text_, text_, &length_));
	CONTAINS("Agree of 9 at model.py:10", symmem_last_error(sizeof text_, text_, &length_));
	TRUE(number == 8 + rank);
	batch.name_length = SYMMEM_VALUE_NAME + 1;
	WANT(SYMMEM_ERR_INVALID, symmem_value(&batch, &number));
	WANT(SYMMEM_ERR_INVALID, symmem_value(&summed, NULL));
	WANT(SYMMEM_ERR_INVALID, symmem_value(NULL, &number));
	union { double value; int64_t bits; } rate = {0.5};
	batch = (struct symmem_value){world, SYMMEM_VALUE_AGREE_FLOAT, 0, 4, "rate"};
	DO(symmem_value(&batch, &rate.bits));
	rate.value += rank;
	WANT(SYMMEM_ERR_DIVERGENCE, symmem_value(&batch, &rate.bits));
	CONTAINS("Agree of 1.5 at model.py:10", symmem_last_error(sizeof text_, text_, &length_));
	DO(symmem_agree_string(world, 4, "name", 4, "adam", 0));
	WANT(SYMMEM_ERR_DIVERGENCE, symmem_agree_string(world, 4, "name", 1, rank ? "b" : "a", 0));
	CONTAINS("Agree of \"b\" at model.py:10", symmem_last_error(sizeof text_, text_, &length_));
	WANT(SYMMEM_ERR_INVALID, symmem_agree_string(world, 4, "name", 1, NULL, 0));
	DO(symmem_step(world, 6, "decode", 0));
	WANT(SYMMEM_ERR_DIVERGENCE, symmem_step(world, 7, rank ? "prefill" : "sample ", 0));
	CONTAINS("prefill, after 0 collectives", symmem_last_error(sizeof text_, text_, &length_));
	DO(symmem_group_error(world)); /* the group goes on */
	DO(symmem_alloc(0, 4096, 0, &at));
	DO(symmem_scope_end(world, 0, NULL));
	at_line(rank ? "model.py:20" : "model.py:30");
	DO(symmem_note(0, 7, rank ? 4096 : 512));
	WANT(SYMMEM_ERR_DIVERGENCE, symmem_check(world));
	CONTAINS("model.py:20", symmem_last_error(sizeof text_, text_, &length_));
	CONTAINS("\"site\":\"model.py:30\"", symmem_last_error_json(sizeof text_, text_, &length_));
	CONTAINS("note 4096 of kind 7", symmem_last_error_json(sizeof text_, text_, &length_));
	WANT(SYMMEM_ERR_DIVERGENCE, symmem_barrier(world, 0)); /* for good, on all ranks */
	WANT(SYMMEM_ERR_DIVERGENCE, symmem_group_error(world));
	DO(symmem_close(1));
	TRUE(one_fault_is_counted());
}

void mismatch(void) {
	uint64_t world = open_with("{\"check\": \"every\"}");
	char *at;
	DO(symmem_alloc(0, 1 << 20, 0, (void **)&at));
	DO(symmem_scope_end(world, 0, NULL));
	at_line(rank ? "layer.py:7" : "layer.py:8");
	/* The same call, on memory that lies elsewhere on one rank: nothing is written. */
	memset(at, 1, 1 << 20);
	char *out = at + (rank ? 4096 : 8192);
	int code =
		symmem_all_reduce(world, 4, SYMMEM_FLOAT32, SYMMEM_SUM, SYMMEM_PATH_WINDOW, out, out, 0);
	if (code == SYMMEM_OK) code = symmem_stream_synchronize(0);
	TRUE(code == SYMMEM_ERR_DIVERGENCE);
	CONTAINS("\"kind\":\"collective\"", symmem_last_error_json(sizeof text_, text_, &length_));
	CONTAINS("layer.py:7", symmem_last_error(sizeof text_, text_, &length_));
	CONTAINS("layer.py:8", symmem_last_error(sizeof text_, text_, &length_));
	for (int i = 0; i < 1 << 20; i++) TRUE(at[i] == 1);
	DO(symmem_close(1));
}

void late(void) {
	uint64_t world = open_with("{\"timeout_ms\": 500, \"warn_after_ms\": 100}");
	static int64_t mine, first;
	void *at;
	mine = getpid();
	DO(symmem_broadcast(world, 1, SYMMEM_INT64, 0, 0, &mine, &first, 0));
	DO(symmem_stream_synchronize(0));
	DO(symmem_alloc(0, 4096, 0, &at));
	if (rank > 0) {
		while (kill((pid_t)first, 0) == 0) usleep(1000);
		int code = symmem_check(world);
		TRUE(code == SYMMEM_ERR_TIMEOUT || code == SYMMEM_ERR_RANK_LOST);
	} else {
		WANT(SYMMEM_ERR_TIMEOUT, symmem_scope_end(world, 0, NULL));
		CONTAINS("\"missing\":[1", symmem_last_error_json(sizeof text_, text_, &length_));
		TRUE(one_fault_is_counted());
		WANT(SYMMEM_ERR_TIMEOUT, symmem_barrier(world, 0));
		char none[1] = {1};
		size_t length = 0;
		TRUE(symmem_generation()[SYMMEM_WORD_WARNINGS] > 0);
		DO(symmem_take_warning(0, NULL, &length));
		TRUE(length > 0);
		DO(symmem_take_warning(0, none, &length));
		WANT(SYMMEM_ERR_SHORT, symmem_take_warning(sizeof none, none, &length));
		CONTAINS("\"ranks\":[1", symmem_take_warning(sizeof text_, text_, &length_));
		int64_t taken = 0;
		while (length > 0) {
			char more[4096];
			taken++;
			DO(symmem_take_warning(sizeof more, more, &length));
		}
		TRUE(taken == symmem_generation()[SYMMEM_WORD_WARNINGS]);
		DO(symmem_take_warning(sizeof none, none, &length));
		TRUE(none[0] == 0 && length == 0);
	}
	DO(symmem_close(1));
}

void lost(void) {
	uint64_t world = open_with("{}");
	if (rank == 1) _exit(0);
	int code = symmem_barrier(world, 0);
	if (code == SYMMEM_OK) code = symmem_stream_synchronize(0);
	TRUE(code == SYMMEM_ERR_RANK_LOST);
	CONTAINS("\"rank_lost\":{", symmem_last_error_json(sizeof text_, text_, &length_));
	DO(symmem_close(1));
}

static double seconds(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void stop(pid_t process) {
	char path[64], state = 0;
	TRUE(kill(process, SIGSTOP) == 0);
	snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
	while (state != 'T') {
		FILE *f = fopen(path, "r");
		TRUE(f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1);
		fclose(f);
	}
}

/* unexplained asks for the cause of a fault while a stopped rank keeps the ranks from agreeing on
 * it. */
void unexplained(void) {
	uint64_t world = open_with("{}");
	const struct symmem_value sum = {world, SYMMEM_VALUE_SUM, 0, 7, "process"};
	int64_t process = rank == 1 ? getpid() : 0;
	DO(symmem_value(&sum, &process));
	if (rank == 0) {
		stop((pid_t)process);
		DO(symmem_group_abort(world));
		double begin = seconds();
		DO(symmem_group_error(world));
		CONTAINS("\"error\":null", symmem_group_describe(world, sizeof text_, text_, &length_));
		TRUE(seconds() - begin < 1);
		TRUE(kill((pid_t)process, SIGCONT) == 0);
	}
	while (symmem_group_error(world) == SYMMEM_OK) usleep(1000);
	WANT(SYMMEM_ERR_ABORTED, symmem_group_error(world));
	DO(symmem_close(1));
}

void reopen(void) {
	for (int i = 0; i < 3; i++) {
		char key[32], options[128];
		/* A variable that is set after the library was loaded counts. */
		snprintf(key, sizeof key, "%d", i % 2);
		setenv("SYMMEM_CALLSITES", key, 1);
		snprintf(options, sizeof options, "{\"environment\": {\"SYMMEM_PATH\": \"%s\"}%s}",
		         i % 2 ? "plain" : "window", i % 2 ? ", \"deterministic\": \"ranks\"" : "");
		uint64_t world = open_with(options);
		TRUE(symmem_callsites() == i % 2);
		CONTAINS(i % 2 ? "\"path\":\"plain\"" : "\"path\":\"window\"",
		         symmem_stats(sizeof text_, text_, &length_));
		CONTAINS(i % 2 ? "\"formula\":\"ranks\"" : "\"formula\":\"any\"",
		         symmem_stats(sizeof text_, text_, &length_));
		DO(symmem_barrier(world, 0));
		DO(symmem_stream_synchronize(0));
		DO(symmem_close(0));
	}
	const char *unknown = "{\"deterministic\": \"sorted\"}";
	TRUE(symmem_open(strlen(unknown), unknown) == SYMMEM_ERR_INVALID);
}
