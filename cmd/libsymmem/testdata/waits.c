/* Calls that wait for their result, on the main thread and on another. */
#include <pthread.h>
#include <unistd.h>

#include "drive.h"

enum { N = 1000 };

static uint64_t world;
static int32_t values[N];

static struct symmem_call sum(void) {
	return (struct symmem_call){
		.size = sizeof(struct symmem_call), .group = world, .operation = SYMMEM_ALL_REDUCE,
		.type = SYMMEM_INT32, .op = SYMMEM_SUM, .count = N, .send = values, .recv = values,
		.flags = SYMMEM_CALL_WAIT,
	};
}

static void *check_sum(void *p) {
	(void)p;
	struct symmem_call call = sum();
	for (int i = 0; i < N; i++) values[i] = rank + i;
	DO(symmem_call(&call));
	for (int i = 0; i < N; i++) TRUE(values[i] == size * (size - 1) / 2 + size * i);
	return NULL;
}

static void on_other_thread(void *(*run)(void *)) {
	pthread_t thread;
	TRUE(!pthread_create(&thread, NULL, run, NULL));
	TRUE(!pthread_join(thread, NULL));
}

/* Sends around a ring. The last rank receives first. */
static void check_messages(void) {
	struct symmem_call send = sum(), recv = sum();
	int32_t out = rank, in = -1, from = -1;
	send.operation = SYMMEM_SEND;
	recv.operation = SYMMEM_RECV;
	send.root = (rank + 1) % size;
	recv.root = (rank + size - 1) % size;
	send.count = recv.count = 1;
	send.send = &out;
	recv.recv = &in;
	recv.from = &from;
	DO(symmem_call(rank + 1 < size ? &send : &recv));
	DO(symmem_call(rank + 1 < size ? &recv : &send));
	TRUE(in == recv.root && from == recv.root);
}

static void check_splits(void) {
	struct symmem_call call = sum();
	int64_t one[8];
	int32_t out[8], in[8];
	for (int r = 0; r < size; r++) one[r] = 1, out[r] = rank * 10 + r;
	call.operation = SYMMEM_ALL_TO_ALL_V;
	call.count = 0;
	call.ranks = size;
	call.send_counts = call.recv_counts = one;
	call.send = out;
	call.recv = in;
	DO(symmem_call(&call));
	for (int r = 0; r < size; r++) TRUE(in[r] == r * 10 + rank);
}

/* Sums two buffers and gathers a third in one call. */
static void check_list(void) {
	struct symmem_call list[3] = {sum(), sum(), sum()};
	static int32_t other[N], own[N], all[8 * N];
	for (int i = 0; i < N; i++) values[i] = rank, other[i] = i, own[i] = rank;
	list[1].send = list[1].recv = other;
	list[1].count = N / 2;
	list[2].operation = SYMMEM_ALL_GATHER;
	list[2].send = own;
	list[2].recv = all;
	list[0].more_count = 2;
	list[0].more = list + 1;
	DO(symmem_call(list));
	for (int i = 0; i < N; i++) {
		TRUE(values[i] == size * (size - 1) / 2);
		TRUE(other[i] == (i < N / 2 ? size * i : i));
	}
	for (int i = 0; i < size * N; i++) TRUE(all[i] == i / N);
	list[1].more_count = 1;
	WANT(SYMMEM_ERR_INVALID, symmem_call(list));
	list[1].more_count = 0;
	list[2].operation = SYMMEM_SEND;
	list[2].root = (rank + 1) % size;
	WANT(SYMMEM_ERR_INVALID, symmem_call(list));
	list[0].more = NULL;
	WANT(SYMMEM_ERR_INVALID, symmem_call(list));
}

static void check_misuse(void) {
	struct symmem_call call = sum();
	call.size--;
	WANT(SYMMEM_ERR_INVALID, symmem_call(&call));
	call.size += 2;
	WANT(SYMMEM_ERR_INVALID, symmem_call(&call));
	CONTAINS("struct symmem_call", symmem_last_error(sizeof text_, text_, &length_));
	WANT(SYMMEM_ERR_INVALID, symmem_call(NULL));
	call = sum();
	call.flags = 2;
	WANT(SYMMEM_ERR_INVALID, symmem_call(&call));
	call = sum();
	call.operation = SYMMEM_ALL_TO_ALL_V;
	WANT(SYMMEM_ERR_INVALID, symmem_call(&call));
}

static int end_wait(void) { return 1; }

static int on_main(void) { abort(); }

/* Makes a call that the other ranks do not make. The function for other threads ends the wait. */
static void *check_interrupt(void *p) {
	(void)p;
	struct symmem_call call = sum();
	TRUE(symmem_poll() == end_wait());
	WANT(SYMMEM_ERR_INTERRUPTED, symmem_call(&call));
	return NULL;
}

void waits(void) {
	world = open_with("{}");
	(void)check_sum(NULL);
	on_other_thread(check_sum);
	if (size > 1) check_messages();
	check_splits();
	check_list();
	check_misuse();
	if (size > 1 && rank == 0) {
		DO(symmem_set_poll(on_main, end_wait));
		on_other_thread(check_interrupt);
		DO(symmem_set_poll(NULL, NULL));
		TRUE(!symmem_poll());
	}
	while (size > 1 && symmem_group_error(world) == SYMMEM_OK) usleep(1000);
	DO(symmem_close(1));
}
