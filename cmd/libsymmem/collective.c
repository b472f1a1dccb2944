/* Collectives of symmem.h. One Go function implements all of them. */
#include <stddef.h>
#include <string.h>

#include "_cgo_export.h"
#include "shim.h"
#include "state.h"

static int refuse_size(size_t length, const char *message) {
	symmem_note_error(SYMMEM_ERR_INVALID, length, message, 0, "");
	return 0;
}

/* KNOWS reports whether the arguments have the size that this library knows, and notes an error if
 * not. */
#define UNKNOWN(type) \
	"struct " #type " has a size that this library does not know: set size to sizeof(struct " #type \
	") of the library's own symmem.h"
#define KNOWS(arguments, type) \
	(((arguments) && (arguments)->size == sizeof(struct type)) || \
	 refuse_size(sizeof UNKNOWN(type) - 1, UNKNOWN(type)))

/* The size of struct symmem_call in its first version. */
enum { SMALLEST_CALL = offsetof(struct symmem_call, event) };

/* Returns the arguments with all fields of this version, or null. copy has room for them. */
static const struct symmem_call *complete(const struct symmem_call *call, struct symmem_call *copy) {
	if (!call || call->size < SMALLEST_CALL || call->size > sizeof *call ||
	    call->size % sizeof(uint64_t)) {
		refuse_size(sizeof UNKNOWN(symmem_call) - 1, UNKNOWN(symmem_call));
		return 0;
	}
	if (call->size == sizeof *call) return call;
	memset(copy, 0, sizeof *copy);
	memcpy(copy, call, call->size);
	return copy;
}

static int make(const struct symmem_call *call) {
	uint32_t site = call->site ? call->site : symmem_current_site();
	int waits = (call->flags & SYMMEM_CALL_WAIT) != 0;
	if (waits) symmem_begin_wait();
	int code = WAITING(goCall((struct symmem_call *)call, site));
	if (waits) symmem_end_wait();
	return code;
}

API int symmem_call(const struct symmem_call *call) {
	struct symmem_call copy;
	if (__builtin_expect(symmem_forked, 0)) return SYMMEM_ERR_FORKED;
	call = complete(call, &copy);
	return call ? make(call) : SYMMEM_ERR_INVALID;
}

API int symmem_collective(uint64_t group, int operation, int64_t count, int type, int op, int root,
                          int path, const void *send, void *recv, uint64_t stream) {
	struct symmem_call call = {
		.group = group, .stream = stream, .operation = operation, .type = type, .op = op,
		.path = path, .root = root, .count = count, .send = send, .recv = recv,
	};
	return make(&call);
}

API int symmem_premul_sum(uint64_t group, int operation, int64_t count, int type, double factor,
                          int root, int path, const void *send, void *recv, uint64_t stream) {
	struct symmem_call call = {
		.group = group, .stream = stream, .operation = operation, .type = type,
		.op = SYMMEM_PREMUL_SUM, .path = path, .root = root, .count = count, .factor = factor,
		.send = send, .recv = recv,
	};
	return make(&call);
}

API int symmem_all_reduce(uint64_t group, int64_t count, int type, int op, int path,
                          const void *send, void *recv, uint64_t stream) {
	return symmem_collective(group, SYMMEM_ALL_REDUCE, count, type, op, 0, path, send, recv, stream);
}

API int symmem_all_gather(uint64_t group, int64_t count, int type, int path, const void *send,
                          void *recv, uint64_t stream) {
	return symmem_collective(group, SYMMEM_ALL_GATHER, count, type, 0, 0, path, send, recv, stream);
}

API int symmem_reduce_scatter(uint64_t group, int64_t count, int type, int op, int path,
                              const void *send, void *recv, uint64_t stream) {
	return symmem_collective(group, SYMMEM_REDUCE_SCATTER, count, type, op, 0, path, send, recv,
	                         stream);
}

API int symmem_broadcast(uint64_t group, int64_t count, int type, int root, int path,
                         const void *send, void *recv, uint64_t stream) {
	return symmem_collective(group, SYMMEM_BROADCAST, count, type, 0, root, path, send, recv, stream);
}

API int symmem_all_to_all(uint64_t group, int64_t count, int type, int path, const void *send,
                          void *recv, uint64_t stream) {
	return symmem_collective(group, SYMMEM_ALL_TO_ALL, count, type, 0, 0, path, send, recv, stream);
}

API int symmem_all_to_all_v(uint64_t group, size_t ranks, const int64_t *send_counts,
                            const int64_t *send_offsets, const int64_t *recv_counts,
                            const int64_t *recv_offsets, int type, const void *send, void *recv,
                            uint64_t stream) {
	struct symmem_call call = {
		.group = group, .stream = stream, .operation = SYMMEM_ALL_TO_ALL_V, .type = type,
		.send = send, .recv = recv, .ranks = ranks, .send_counts = send_counts,
		.send_offsets = send_offsets, .recv_counts = recv_counts, .recv_offsets = recv_offsets,
	};
	return make(&call);
}

API int symmem_all_gather_v(uint64_t group, size_t ranks, const int64_t *counts,
                            const int64_t *offsets, int type, const void *send, void *recv,
                            uint64_t stream) {
	struct symmem_call call = {
		.group = group, .stream = stream, .operation = SYMMEM_ALL_GATHER_V, .type = type,
		.send = send, .recv = recv, .ranks = ranks, .recv_counts = counts, .recv_offsets = offsets,
	};
	return make(&call);
}

API int symmem_reduce_scatter_v(uint64_t group, size_t ranks, const int64_t *counts,
                                const int64_t *offsets, int type, int op, const void *send,
                                void *recv, uint64_t stream) {
	struct symmem_call call = {
		.group = group, .stream = stream, .operation = SYMMEM_REDUCE_SCATTER_V, .type = type, .op = op,
		.send = send, .recv = recv, .ranks = ranks, .send_counts = counts, .send_offsets = offsets,
	};
	return make(&call);
}

API int symmem_reduce(uint64_t group, int64_t count, int type, int op, int root, int path,
                      const void *send, void *recv, uint64_t stream) {
	return symmem_collective(group, SYMMEM_REDUCE, count, type, op, root, path, send, recv, stream);
}

API int symmem_gather(uint64_t group, int64_t count, int type, int root, const void *send,
                      void *recv, uint64_t stream) {
	return symmem_collective(group, SYMMEM_GATHER, count, type, 0, root, SYMMEM_PATH_DEFAULT, send,
	                         recv, stream);
}

API int symmem_scatter(uint64_t group, int64_t count, int type, int root, const void *send,
                       void *recv, uint64_t stream) {
	return symmem_collective(group, SYMMEM_SCATTER, count, type, 0, root, SYMMEM_PATH_DEFAULT, send,
	                         recv, stream);
}

API int symmem_send(uint64_t group, int64_t count, int type, int peer, int tag, const void *send,
                    uint64_t stream) {
	struct symmem_call call = {
		.group = group, .stream = stream, .operation = SYMMEM_SEND, .type = type, .root = peer,
		.tag = tag, .count = count, .send = send,
	};
	return make(&call);
}

API int symmem_recv(uint64_t group, int64_t count, int type, int source, int tag, void *recv,
                    int32_t *from, uint64_t stream) {
	struct symmem_call call = {
		.group = group, .stream = stream, .operation = SYMMEM_RECV, .type = type, .root = source,
		.tag = tag, .count = count, .recv = recv, .from = from,
	};
	return make(&call);
}

static int run_norm(uint64_t group, const struct symmem_norm *norm, int scatters, uint64_t stream) {
	if (__builtin_expect(symmem_forked, 0)) return SYMMEM_ERR_FORKED;
	if (!KNOWS(norm, symmem_norm)) return SYMMEM_ERR_INVALID;
	return WAITING(
		goNorm(group, (struct symmem_norm *)norm, scatters, stream, symmem_current_site()));
}

API int symmem_norm(uint64_t group, const struct symmem_norm *norm, uint64_t stream) {
	return run_norm(group, norm, 0, stream);
}

API int symmem_scattered_norm(uint64_t group, const struct symmem_norm *norm, uint64_t stream) {
	return run_norm(group, norm, 1, stream);
}

API int symmem_all_reduce_rms_norm(uint64_t group, int64_t rows, int64_t hidden, float epsilon,
                                   const void *input, void *residual, const void *weight,
                                   void *output, uint64_t stream) {
	struct symmem_norm norm = {
		.size = sizeof norm, .rows = rows, .hidden = hidden, .type = SYMMEM_BFLOAT16,
		.epsilon = epsilon, .input = input, .residual = residual, .weight = weight, .output = output,
	};
	return symmem_norm(group, &norm, stream);
}

static int exchange(uint64_t group, const struct symmem_route *route, int combines,
                    uint64_t stream) {
	if (__builtin_expect(symmem_forked, 0)) return SYMMEM_ERR_FORKED;
	if (!KNOWS(route, symmem_route)) return SYMMEM_ERR_INVALID;
	return WAITING(goRoute(group, (struct symmem_route *)route, combines, stream,
	                       symmem_current_site()));
}

API int symmem_dispatch(uint64_t group, const struct symmem_route *route, uint64_t stream) {
	return exchange(group, route, 0, stream);
}

API int symmem_combine(uint64_t group, const struct symmem_route *route, uint64_t stream) {
	return exchange(group, route, 1, stream);
}

API int symmem_route_layout(const struct symmem_route *route, int ranks,
                            struct symmem_route_layout *layout) {
	if (__builtin_expect(symmem_forked, 0)) return SYMMEM_ERR_FORKED;
	if (!KNOWS(route, symmem_route)) return SYMMEM_ERR_INVALID;
	return goRouteLayout((struct symmem_route *)route, ranks, layout);
}

static int rearrange(uint64_t group, const struct symmem_permute *permute, int returns,
                     uint64_t stream) {
	if (__builtin_expect(symmem_forked, 0)) return SYMMEM_ERR_FORKED;
	if (!KNOWS(permute, symmem_permute)) return SYMMEM_ERR_INVALID;
	return WAITING(goPermute(group, (struct symmem_permute *)permute, returns, stream));
}

API int symmem_permute(uint64_t group, const struct symmem_permute *permute, uint64_t stream) {
	return rearrange(group, permute, 0, stream);
}

API int symmem_unpermute(uint64_t group, const struct symmem_permute *permute, uint64_t stream) {
	return rearrange(group, permute, 1, stream);
}

API int symmem_permute_layout(const struct symmem_permute *permute, int ranks,
                              struct symmem_permute_layout *layout) {
	if (__builtin_expect(symmem_forked, 0)) return SYMMEM_ERR_FORKED;
	if (!KNOWS(permute, symmem_permute)) return SYMMEM_ERR_INVALID;
	return goPermuteLayout((struct symmem_permute *)permute, ranks, layout);
}

API int symmem_barrier(uint64_t group, uint64_t stream) {
	return symmem_collective(group, SYMMEM_BARRIER, 0, SYMMEM_UINT8, 0, 0, SYMMEM_PATH_DEFAULT, 0, 0,
	                         stream);
}
