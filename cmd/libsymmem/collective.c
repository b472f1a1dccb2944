/* Collectives of symmem.h. One Go function implements all of them. */
#include "_cgo_export.h"
#include "shim.h"
#include "state.h"

API int symmem_collective(uint64_t group, int operation, int64_t count, int type, int op, int root,
                          int path, const void *send, void *recv, uint64_t stream) {
	return WAITING(goCollective(group, operation, count, type, op, 0, root, path, (void *)send, recv,
	                            stream, symmem_current_site()));
}

API int symmem_premul_sum(uint64_t group, int operation, int64_t count, int type, double factor,
                          int root, int path, const void *send, void *recv, uint64_t stream) {
	return WAITING(goCollective(group, operation, count, type, SYMMEM_PREMUL_SUM, factor, root, path,
	                            (void *)send, recv, stream, symmem_current_site()));
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
	return WAITING(goAllToAllV(group, ranks, (int64_t *)send_counts, (int64_t *)send_offsets,
	                           (int64_t *)recv_counts, (int64_t *)recv_offsets, type, (void *)send,
	                           recv, stream, symmem_current_site()));
}

API int symmem_send(uint64_t group, int64_t count, int type, int peer, int tag, const void *send,
                    uint64_t stream) {
	return WAITING(goMessage(group, SYMMEM_SEND, count, type, peer, tag, (void *)send, NULL, stream,
	                         symmem_current_site()));
}

API int symmem_recv(uint64_t group, int64_t count, int type, int source, int tag, void *recv,
                    int32_t *from, uint64_t stream) {
	return WAITING(goMessage(group, SYMMEM_RECV, count, type, source, tag, recv, from, stream,
	                         symmem_current_site()));
}

API int symmem_all_reduce_rms_norm(uint64_t group, int64_t rows, int64_t hidden, float epsilon,
                                   const void *input, void *residual, const void *weight,
                                   void *output, uint64_t stream) {
	return WAITING(goNorm(group, rows, hidden, epsilon, (void *)input, residual, (void *)weight,
	                      output, stream, symmem_current_site()));
}

API int symmem_barrier(uint64_t group, uint64_t stream) {
	return symmem_collective(group, SYMMEM_BARRIER, 0, SYMMEM_UINT8, 0, 0, SYMMEM_PATH_DEFAULT, 0, 0,
	                         stream);
}
