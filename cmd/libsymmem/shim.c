/* Functions of symmem.h that are implemented in Go. Each first checks for a fork, because Go cannot
 * run in the child. */
#include "_cgo_export.h"
#include "shim.h"
#include "state.h"

#define CALL(call) (__builtin_expect(symmem_forked, 0) ? SYMMEM_ERR_FORKED : (call))

API int symmem_open(size_t n, const char *options) { return WAITING(goOpen(n, (char *)options)); }

API int symmem_close(int force) { return WAITING(goClose(force)); }

API int symmem_is_open(void) { return symmem_forked ? 0 : goIsOpen(); }

API int symmem_callsites(void) { return symmem_forked ? 0 : goCallSites(); }

API int symmem_describe(size_t size, char *text, size_t *length) {
	return CALL(goDescribe(size, text, length));
}

API int symmem_world_open(size_t n, const char *options, uint64_t *world) {
	return WAITING(goWorldOpen(n, (char *)options, world));
}

API int symmem_world_close(uint64_t world, int force) { return WAITING(goWorldClose(world, force)); }

API int symmem_world_describe(uint64_t world, size_t size, char *text, size_t *length) {
	return CALL(goWorldDescribe(world, size, text, length));
}

API int symmem_world_stats(uint64_t world, size_t size, char *text, size_t *length) {
	return CALL(goWorldStats(world, size, text, length));
}

API int symmem_world_set_check(uint64_t world, int level) {
	return WAITING(goWorldSetCheck(world, level));
}

API int symmem_world_group_open(uint64_t world, size_t n, const char *name, size_t count,
                                const int32_t *ranks, int64_t timeout_ms, uint64_t *group) {
	return WAITING(
		goWorldGroupOpen(world, n, (char *)name, count, (int32_t *)ranks, timeout_ms, group));
}

API int symmem_world(uint64_t *group) { return CALL(goWorld(group)); }

API int symmem_group_open(size_t n, const char *name, size_t count, const int32_t *ranks,
                          uint64_t *group) {
	return WAITING(goGroupOpen(n, (char *)name, count, (int32_t *)ranks, group));
}

API int symmem_group_close(uint64_t group) { return WAITING(goGroupClose(group)); }

API int symmem_group_set_timeout(uint64_t group, int64_t timeout_ms) {
	return CALL(goGroupSetTimeout(group, timeout_ms));
}

API int symmem_group_describe(uint64_t group, size_t size, char *text, size_t *length) {
	return CALL(goGroupDescribe(group, size, text, length));
}

API int symmem_group_error(uint64_t group) { return CALL(goGroupError(group)); }

API int symmem_group_abort(uint64_t group) { return CALL(goGroupAbort(group)); }

API int symmem_group_suspend(uint64_t group, uint64_t *released) {
	return WAITING(goGroupSuspend(group, released));
}

API int symmem_group_resume(uint64_t group) { return WAITING(goGroupResume(group)); }

API int symmem_group_set_path(uint64_t group, int path) {
	return WAITING(goGroupSetPath(group, path));
}

API int symmem_pool_open(uint64_t domain, size_t n, const char *options, int *pool) {
	return CALL(goPoolOpen(domain, n, (char *)options, pool));
}

API int symmem_pool_close(int pool, int force) { return WAITING(goPoolClose(pool, force)); }

API int symmem_alloc(int pool, size_t bytes, uint64_t stream, void **address) {
	return CALL(goAlloc(pool, bytes, stream, symmem_current_site(), address));
}

API int symmem_alloc_on(int pool, size_t bytes, int device, uint64_t stream, void **address) {
	return CALL(goAllocOn(pool, bytes, device, stream, symmem_current_site(), address));
}

API int symmem_free(void *address) { return CALL(goFree(address)); }

API int symmem_reserve(int pool, size_t bytes, uint64_t group) {
	return WAITING(goReserve(pool, bytes, 0, group, symmem_current_site()));
}

API int symmem_reserve_on(int pool, size_t bytes, uint64_t stream, uint64_t group) {
	return WAITING(goReserve(pool, bytes, stream, group, symmem_current_site()));
}

API int symmem_trim(int pool, size_t keep) { return WAITING(goTrim(pool, keep)); }

API int symmem_pool_suspend(int pool, int keep, uint64_t *released) {
	return WAITING(goPoolSuspend(pool, keep, released));
}

API int symmem_pool_resume(int pool) { return WAITING(goPoolResume(pool)); }

API int symmem_scope_end(uint64_t group, uint64_t stream, int64_t *seen) {
	return WAITING(goScopeEnd(group, stream, seen));
}

API int symmem_register_pending(uint64_t group, int pool, uint64_t stream) {
	return WAITING(goRegisterPending(group, pool, stream));
}

API int symmem_attach(uint64_t group, uint64_t comm, size_t n, const char *name,
                      uint64_t *attachment) {
	return WAITING(goAttach(group, comm, n, (char *)name, attachment));
}

API int symmem_detach(uint64_t attachment, int alive) { return WAITING(goDetach(attachment, alive)); }

API int symmem_is_symmetric(uint64_t group, size_t bytes, const void *address) {
	return symmem_forked ? 0 : goIsSymmetric(group, bytes, (void *)address);
}

API int symmem_peer_addresses(uint64_t group, size_t bytes, const void *address, size_t ranks,
                              uint64_t *addresses) {
	return CALL(goPeerAddresses(group, bytes, (void *)address, ranks, addresses));
}

API int symmem_nccl_window(uint64_t group, size_t bytes, const void *address, uint64_t *comm,
                           uint64_t *window, uint64_t *offset) {
	return CALL(goNCCLWindow(group, bytes, (void *)address, comm, window, offset));
}

API int symmem_signal_words_open(uint64_t group, size_t words, size_t ranks, uint64_t *addresses) {
	return WAITING(goSignalWordsOpen(group, words, ranks, addresses));
}

API int symmem_signal_words_close(const void *words) {
	return WAITING(goSignalWordsClose((void *)words));
}

API int symmem_pad_open(uint64_t group, size_t sites, const char *const *names, uint64_t *pad) {
	return WAITING(goPadOpen(group, sites, (char **)names, pad));
}

API int symmem_pad_close(uint64_t pad) { return WAITING(goPadClose(pad)); }

API int symmem_pad_check(uint64_t pad) { return WAITING(goPadCheck(pad)); }

API int symmem_pad_explain(uint64_t pad, size_t size, char *text, size_t *length) {
	return WAITING(goPadExplain(pad, size, text, length));
}

API int symmem_windows(uint64_t group, size_t capacity, int64_t *pairs, size_t *count) {
	return CALL(goWindows(group, capacity, pairs, count));
}

API int symmem_locate(const void *address, size_t size, char *text, size_t *length) {
	return CALL(goLocate((void *)address, size, text, length));
}

API int symmem_explain(uint64_t group, int operation, int64_t count, int type, const void *send,
                       const void *recv, size_t size, char *text, size_t *length) {
	return CALL(goExplain(group, operation, count, type, (void *)send, (void *)recv, size, text,
	                      length));
}

API int symmem_stats(size_t size, char *text, size_t *length) {
	return CALL(goStats(size, text, length));
}

API int symmem_take_warning(size_t size, char *text, size_t *length) {
	return CALL(goTakeWarning(size, text, length));
}

API int symmem_check(uint64_t group) { return WAITING(goCheck(group)); }

API int symmem_set_check(int level) { return WAITING(goSetCheck(level)); }

API int symmem_note(int pool, int64_t kind, int64_t value) {
	return CALL(goNote(pool, kind, value, symmem_current_site()));
}

API int symmem_site(size_t n, const char *text, uint32_t *site) {
	return CALL(goSite(n, (char *)text, site));
}

API int symmem_value(const struct symmem_value *of, int64_t *number) {
	return WAITING(goValue((struct symmem_value *)of, symmem_current_site(), number));
}

API int symmem_agree_string(uint64_t group, size_t name_n, const char *name, size_t n,
                            const char *text, uint32_t site) {
	if (site == 0) site = symmem_current_site();
	return WAITING(goAgreeString(group, name_n, (char *)name, n, (char *)text, site));
}

API int symmem_step(uint64_t group, size_t n, const char *what, uint32_t site) {
	return WAITING(goStep(group, n, (char *)what, site != 0 ? site : symmem_current_site()));
}

API int symmem_stream_synchronize(uint64_t stream) { return WAITING(goSynchronize(stream)); }

API int symmem_stream_forget(uint64_t stream) { return WAITING(goForget(stream)); }

API int symmem_streams_idle(int yes) { return CALL(goIdle(yes)); }

API int symmem_event_record(uint64_t stream, uint64_t *event) {
	return WAITING(goEventRecord(stream, event));
}

API int symmem_event_done(uint64_t event) { return symmem_forked ? 0 : goEventDone(event); }

API int symmem_event_synchronize(uint64_t event) { return WAITING(goEventSynchronize(event)); }

API int symmem_event_wait(uint64_t event, int64_t timeout_ms) {
	return WAITING(goEventWait(event, timeout_ms));
}

API int symmem_event_close(uint64_t event) { return CALL(goEventClose(event)); }

API int symmem_stream_wait(uint64_t stream, uint64_t event) {
	return WAITING(goStreamWait(stream, event));
}
