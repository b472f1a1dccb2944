/* Messages between two ranks, and exchanges with splits. */
#include "drive.h"

#include <stddef.h>

enum { N = 3 << 20 };

static int32_t out[N], in[N];

/* All ranks send around a ring, each on one stream, and then to rank 0, which takes what comes. */
static void ring(uint64_t world) {
	int next = (rank + 1) % size, before = (rank + size - 1) % size;
	int32_t from = -7;
	for (int i = 0; i < N; i++) out[i] = rank * 1000 + i;
	DO(symmem_send(world, N, SYMMEM_INT32, next, 0, out, 0));
	DO(symmem_recv(world, N, SYMMEM_INT32, before, 0, in, &from, 0));
	DO(symmem_stream_synchronize(0));
	TRUE(from == before);
	for (int i = 0; i < N; i++) TRUE(in[i] == before * 1000 + i);
}

static void any_source(uint64_t world) {
	if (rank > 0) {
		DO(symmem_send(world, 1, SYMMEM_INT32, 0, 2, &rank, 5));
		DO(symmem_send(world, 1, SYMMEM_INT32, 0, 1, &size, 5));
		DO(symmem_stream_synchronize(5));
		return;
	}
	int32_t seen = 0, from[8];
	for (int i = 1; i < size; i++) {
		DO(symmem_recv(world, 1, SYMMEM_INT32, i, 1, in + 9, NULL, 5));
	}
	for (int i = 1; i < size; i++) {
		DO(symmem_recv(world, 1, SYMMEM_INT32, SYMMEM_ANY_SOURCE, 2, in + i, from + i, 5));
	}
	DO(symmem_stream_synchronize(5));
	TRUE(in[9] == size);
	for (int i = 1; i < size; i++) {
		TRUE(in[i] == from[i]);
		seen |= 1 << from[i];
	}
	TRUE(seen == (1 << size) - 2);
}

/* Rank 1 answers rank 0, whose receive is therefore incomplete when it returns. */
static void events(uint64_t world) {
	uint64_t event = 99;
	int32_t peer = 1 - rank;
	struct symmem_call receive = {
		.size = sizeof receive, .group = world, .stream = 7, .operation = SYMMEM_RECV,
		.type = SYMMEM_INT32, .root = peer, .count = 1, .recv = in, .event = &event,
	};
	struct symmem_call send = receive;
	send.stream = 8;
	send.operation = SYMMEM_SEND;
	send.send = &peer;
	send.recv = NULL;
	if (rank > 1) return;
	if (rank == 1) {
		receive.size = offsetof(struct symmem_call, event); /* of the header's first version */
		DO(symmem_call(&receive));
		TRUE(event == 99);
		DO(symmem_stream_synchronize(7));
		DO(symmem_call(&send));
		TRUE(event == 0); /* the message fits into the pipe */
		DO(symmem_stream_synchronize(8));
	} else {
		DO(symmem_call(&receive));
		TRUE(event != 0 && event != 99 && !symmem_event_done(event));
		send.event = NULL;
		DO(symmem_call(&send));
		DO(symmem_event_synchronize(event));
		DO(symmem_event_close(event));
		DO(symmem_stream_synchronize(7));
	}
	TRUE(in[0] == rank);
}

void messages(void) {
	uint64_t world = open_with("{\"ordered_messages\": true}");
	ring(world);
	events(world);
	any_source(world);
	WANT(SYMMEM_ERR_INVALID, symmem_send(world, 1, SYMMEM_INT32, rank, 0, out, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_send(world, 1, SYMMEM_INT32, SYMMEM_ANY_SOURCE, 0, out, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_send(world, 1, SYMMEM_INT32, 1 - rank % 2, -1, out, 0));
	WANT(SYMMEM_ERR_INVALID, symmem_recv(world, -1, SYMMEM_INT32, 1 - rank % 2, 0, in, NULL, 0));
	DO(symmem_barrier(world, 0));
	DO(symmem_stream_synchronize(0));
	/* Rank 1 forgets to receive. */
	if (rank == 0) DO(symmem_send(world, 1, SYMMEM_INT32, 1, 6, out, 0));
	int code = symmem_barrier(world, 0);
	if (code == SYMMEM_OK) code = symmem_stream_synchronize(0);
	TRUE(code == SYMMEM_ERR_DIVERGENCE);
	CONTAINS("1 sent and 0 received", symmem_last_error(sizeof text_, text_, &length_));
	CONTAINS("\"messages\":[{\"from\":0,\"to\":1,\"tag\":6,\"sent\":1,\"received\":0}]",
	         symmem_last_error_json(sizeof text_, text_, &length_));
	DO(symmem_close(1));
}

/* count is how many elements one rank sends to another. */
static int64_t count(int from, int to) { return (from * 7 + to * 3) % 5 * 1000; }

void splits(void) {
	uint64_t world = open_with("{}");
	int64_t sends[8], recvs[8], offsets[8], at = 0, end = 0;
	for (int r = 0; r < size; r++) {
		sends[r] = count(rank, r);
		recvs[r] = count(r, rank);
		for (int64_t i = 0; i < sends[r]; i++) out[at++] = rank * 100 + r;
		offsets[size - 1 - r] = 0;
	}
	for (int r = size - 1; r >= 0; r--) { /* the parts come in the other order */
		offsets[r] = end;
		end += recvs[r];
	}
	DO(symmem_all_to_all_v(world, size, sends, NULL, recvs, offsets, SYMMEM_INT32, out, in, 0));
	DO(symmem_stream_synchronize(0));
	for (int r = 0; r < size; r++) {
		for (int64_t i = 0; i < recvs[r]; i++) TRUE(in[offsets[r] + i] == r * 100 + rank);
	}
	DO(symmem_all_to_all_v(world, size, sends, NULL, recvs, NULL, SYMMEM_INT32, out, in, 0));
	DO(symmem_stream_synchronize(0));
	at = 0;
	for (int r = 0; r < size; r++) {
		for (int64_t i = 0; i < recvs[r]; i++) TRUE(in[at++] == r * 100 + rank);
	}
	WANT(SYMMEM_ERR_INVALID, symmem_all_to_all_v(world, size + 1, sends, NULL, recvs, NULL,
	                                             SYMMEM_INT32, out, in, 0));
	WANT(SYMMEM_ERR_INVALID,
	     symmem_all_to_all_v(world, size, NULL, NULL, recvs, NULL, SYMMEM_INT32, out, in, 0));
	CONTAINS("AllToAllV", symmem_explain(world, SYMMEM_ALL_TO_ALL_V, 4, SYMMEM_INT32, out, in,
	                                     sizeof text_, text_, &length_));
	DO(symmem_barrier(world, 0));
	DO(symmem_stream_synchronize(0));
	if (rank == 0) recvs[size - 1]++;
	int code = symmem_all_to_all_v(world, size, sends, NULL, recvs, NULL, SYMMEM_INT32, out, in, 0);
	if (code == SYMMEM_OK) code = symmem_stream_synchronize(0);
	TRUE(code == SYMMEM_ERR_DIVERGENCE);
	CONTAINS("splits differ", symmem_last_error(sizeof text_, text_, &length_));
	DO(symmem_close(1));
}
