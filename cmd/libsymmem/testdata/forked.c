/* Calls every function of symmem.h in a child of fork(). TestForkedChildTestsAllFunctions
 * checks that no function is missing. */
#include "drive.h"

#define REFUSED(call) WANT(SYMMEM_ERR_FORKED, call)

/* A function that returns an error must not write through its pointers. */
static union {
	uint64_t handle;
	int number;
	uint32_t site;
	int64_t seen;
	size_t count;
	void *address;
} out;

#define UNTOUCHED 0x7777777777777777u

static void opening(uint64_t world, void *at) {
	REFUSED(symmem_open(0, NULL));
	REFUSED(symmem_close(1));
	TRUE(!symmem_is_open() && !symmem_callsites());
	REFUSED(symmem_describe(0, NULL, &out.count));
	REFUSED(symmem_stats(0, NULL, &out.count));
	REFUSED(symmem_take_warning(0, NULL, &out.count));
	REFUSED(symmem_world(&out.handle));
	int32_t ranks[1] = {rank};
	REFUSED(symmem_group_open(1, "g", 1, ranks, &out.handle));
	REFUSED(symmem_world_open(0, NULL, &out.handle));
	REFUSED(symmem_world_close(world, 1));
	REFUSED(symmem_world_describe(world, 0, NULL, &out.count));
	REFUSED(symmem_world_stats(world, 0, NULL, &out.count));
	REFUSED(symmem_world_set_check(world, SYMMEM_CHECK_OFF));
	REFUSED(symmem_world_group_open(world, 1, "g", 1, ranks, 0, &out.handle));
	REFUSED(symmem_group_set_timeout(world, 1));
	REFUSED(symmem_group_suspend(world, NULL));
	REFUSED(symmem_group_resume(world));
	REFUSED(symmem_group_close(world));
	REFUSED(symmem_group_describe(world, 0, NULL, &out.count));
	REFUSED(symmem_group_error(world));
	REFUSED(symmem_group_abort(world));
	REFUSED(symmem_group_set_path(world, SYMMEM_PATH_PLAIN));
	REFUSED(symmem_scope_end(world, 0, &out.seen));
	REFUSED(symmem_register_pending(world, 0, 0));
	REFUSED(symmem_attach(world, 1, 1, "c", &out.handle));
	REFUSED(symmem_detach(1, 1));
	TRUE(!symmem_is_symmetric(world, 4, at));
	REFUSED(symmem_peer_addresses(world, 4, at, 0, NULL));
	REFUSED(symmem_nccl_window(world, 4, at, NULL, NULL, NULL));
	REFUSED(symmem_signal_words_open(world, 1, 1, &out.handle));
	REFUSED(symmem_signal_words_close(at));
	REFUSED(symmem_pad_open(world, 0, NULL, &out.handle));
	REFUSED(symmem_pad_check(1));
	REFUSED(symmem_pad_explain(1, 0, NULL, &out.count));
	REFUSED(symmem_pad_close(1));
	REFUSED(symmem_windows(world, 0, NULL, &out.count));
	REFUSED(symmem_locate(at, 0, NULL, &out.count));
	REFUSED(symmem_explain(world, SYMMEM_ALL_REDUCE, 1, SYMMEM_INT8, at, at, 0, NULL, &out.count));
	REFUSED(symmem_check(world));
	REFUSED(symmem_set_check(SYMMEM_CHECK_OFF));
	REFUSED(symmem_step(world, 1, "s", 0));
	const struct symmem_value of = {world, SYMMEM_VALUE_AGREE, 0, 1, "n"};
	REFUSED(symmem_value(&of, &out.seen));
	REFUSED(symmem_agree_string(world, 1, "n", 1, "s", 0));
	REFUSED(symmem_note(0, 1, 1));
	REFUSED(symmem_site(1, "s", &out.site));
}

static void *(*const allocators[])(size_t, int, void *) = {
	symmem_torch_alloc,    symmem_torch_alloc_0,  symmem_torch_alloc_1,  symmem_torch_alloc_2,
	symmem_torch_alloc_3,  symmem_torch_alloc_4,  symmem_torch_alloc_5,  symmem_torch_alloc_6,
	symmem_torch_alloc_7,  symmem_torch_alloc_8,  symmem_torch_alloc_9,  symmem_torch_alloc_10,
	symmem_torch_alloc_11, symmem_torch_alloc_12, symmem_torch_alloc_13, symmem_torch_alloc_14,
	symmem_torch_alloc_15, nccl_alloc_plug,
};

static void memory(uint64_t world, void *at) {
	REFUSED(symmem_pool_open(world, 0, NULL, &out.number));
	REFUSED(symmem_pool_close(0, 1));
	REFUSED(symmem_alloc(0, 8, 0, &out.address));
	REFUSED(symmem_alloc_on(0, 8, 0, 0, &out.address));
	REFUSED(symmem_free(at));
	REFUSED(symmem_reserve(0, 4096, 0));
	REFUSED(symmem_reserve_on(0, 4096, 5, 0));
	REFUSED(symmem_trim(0, 0));
	REFUSED(symmem_pool_suspend(0, 0, NULL));
	REFUSED(symmem_pool_resume(0));
	for (size_t i = 0; i < sizeof allocators / sizeof *allocators; i++) {
		TRUE(!allocators[i](2 << 20, 0, NULL));
	}
	symmem_torch_free(at, 4096, 0, NULL);
	nccl_free_plug(at, 4096, 0, NULL);
	TRUE(nccl_allocator_register_segments_with_comm(1) != 0);
	REFUSED(symmem_plug_forget(1));
}

static void collectives(uint64_t world, void *at) {
	const int type = SYMMEM_INT8, sum = SYMMEM_SUM, path = SYMMEM_PATH_DEFAULT;
	REFUSED(symmem_collective(world, SYMMEM_ALL_REDUCE, 1, type, sum, 0, path, at, at, 0));
	REFUSED(symmem_all_reduce(world, 1, type, sum, path, at, at, 0));
	REFUSED(symmem_premul_sum(world, SYMMEM_ALL_REDUCE, 1, SYMMEM_FLOAT32, 2, 0, path, at, at, 0));
	REFUSED(symmem_all_gather(world, 1, type, path, at, at, 0));
	REFUSED(symmem_reduce_scatter(world, 1, type, sum, path, at, at, 0));
	REFUSED(symmem_broadcast(world, 1, type, 0, path, at, at, 0));
	REFUSED(symmem_all_to_all(world, 1, type, path, at, at, 0));
	const int64_t one = 1;
	REFUSED(symmem_all_to_all_v(world, 1, &one, NULL, &one, NULL, type, at, at, 0));
	REFUSED(symmem_all_gather_v(world, 1, &one, NULL, type, at, at, 0));
	REFUSED(symmem_reduce_scatter_v(world, 1, &one, NULL, type, sum, at, at, 0));
	REFUSED(symmem_reduce(world, 1, type, sum, 0, path, at, at, 0));
	REFUSED(symmem_gather(world, 1, type, 0, at, at, 0));
	REFUSED(symmem_scatter(world, 1, type, 0, at, at, 0));
	REFUSED(symmem_send(world, 1, type, 1, 0, at, 0));
	REFUSED(symmem_recv(world, 1, type, 1, 0, at, NULL, 0));
	const struct symmem_norm norm = {.size = sizeof norm};
	REFUSED(symmem_norm(world, &norm, 0));
	REFUSED(symmem_scattered_norm(world, &norm, 0));
	const struct symmem_route route = {.size = sizeof route};
	struct symmem_route_layout layout;
	REFUSED(symmem_dispatch(world, &route, 0));
	REFUSED(symmem_combine(world, &route, 0));
	REFUSED(symmem_route_layout(&route, 2, &layout));
	const struct symmem_permute permute = {.size = sizeof permute};
	struct symmem_permute_layout permuted;
	REFUSED(symmem_permute(world, &permute, 0));
	REFUSED(symmem_unpermute(world, &permute, 0));
	REFUSED(symmem_permute_layout(&permute, 2, &permuted));
	REFUSED(symmem_all_reduce_rms_norm(world, 1, 8, 0, at, at, at, at, 0));
	const struct symmem_call call = {.size = sizeof call, .group = world};
	REFUSED(symmem_call(&call));
	REFUSED(symmem_barrier(world, 0));
	REFUSED(symmem_stream_synchronize(0));
	REFUSED(symmem_stream_forget(0));
	REFUSED(symmem_streams_idle(1));
	REFUSED(symmem_set_poll(0, 0));
	TRUE(!symmem_poll());
	REFUSED(symmem_stream_wait(0, 1));
	REFUSED(symmem_event_record(0, &out.handle));
	TRUE(!symmem_event_done(1));
	REFUSED(symmem_event_synchronize(1));
	REFUSED(symmem_event_wait(1, 1));
	REFUSED(symmem_event_close(1));
}

/* What enters no Go works as in the parent. */
static void without_go(void) {
	TRUE(symmem_abi_version() == SYMMEM_ABI_VERSION);
	CONTAINS("fork", symmem_last_error(sizeof text_, text_, &length_));
	CONTAINS("FORKED", symmem_last_error_json(sizeof text_, text_, &length_));
	TRUE(symmem_generation()[SYMMEM_WORD_PENDING] > 0);
	TRUE(symmem_select(1) == 0 && symmem_select(0) == 1);
	TRUE(symmem_set_site(5) == 0 && symmem_set_site(0) == 5);
}

void in_child(uint64_t world, void *at) {
	out.handle = UNTOUCHED;
	opening(world, at);
	memory(world, at);
	collectives(world, at);
	without_go();
	TRUE(out.handle == UNTOUCHED);
}
