/* What only a GPU has: streams and communicators of other libraries, captures, SGLang's symbols.
 * The libraries are opened by the names that symmem is given, too, so this runs on the software
 * GPU. */
#include <dlfcn.h>
#include <unistd.h>

#include "drive.h"
#include "gpu.h"

static void *cuda, *nccl;

static void *symbol(void *library, const char *name) {
	void *at = dlsym(library, name);
	if (!at) fail(__FILE__, __LINE__, name, 0);
	return at;
}

#define CUDA(name, ...) TRUE(((int (*)())symbol(cuda, name))(__VA_ARGS__) == 0)
#define NCCL(name, ...) TRUE(((int (*)())symbol(nccl, name))(__VA_ARGS__) == 0)

/* start makes the context of this rank's GPU current, as PyTorch does. */
static void start(void) {
	TRUE(cuda = dlopen(getenv("SYMMEM_CUDA"), RTLD_NOW | RTLD_GLOBAL));
	TRUE(nccl = dlopen(getenv("SYMMEM_NCCL"), RTLD_NOW | RTLD_GLOBAL));
	int device;
	void *context;
	CUDA("cuInit", 0u);
	CUDA("cuDeviceGet", &device, rank);
	CUDA("cuDevicePrimaryCtxRetain", &context, device);
	CUDA("cuCtxSetCurrent", context);
}

static void *new_stream(void) {
	void *stream;
	CUDA("cuStreamCreate", &stream, 1u);
	return stream;
}

/* connect makes a communicator of all ranks. The id goes through a file. */
static void *connect(const char *name) {
	struct unique id;
	char path[4096], written[4200];
	snprintf(path, sizeof path, "%s/%s", getenv("DRIVE_DIR"), name);
	snprintf(written, sizeof written, "%s.new", path);
	if (rank == 0) {
		NCCL("ncclGetUniqueId", &id);
		FILE *f = fopen(written, "w");
		TRUE(f && fwrite(&id, sizeof id, 1, f) == 1 && !fclose(f) && !rename(written, path));
	}
	FILE *f;
	while (!(f = fopen(path, "r"))) usleep(1000);
	TRUE(fread(&id, sizeof id, 1, f) == 1);
	fclose(f);
	int (*make)(void **, int, struct unique, int) =
		(int (*)(void **, int, struct unique, int))symbol(nccl, "ncclCommInitRank");
	void *comm;
	TRUE(make(&comm, size, id, rank) == 0);
	return comm;
}

/* reduces lets the communicator's own all-reduce run over memory, as an engine does. */
static void reduces(void *comm, float *at, void *stream) {
	at[0] = (float)(rank + 1); /* the software GPU's memory is that of the host */
	NCCL("ncclAllReduce", at, at, (size_t)1, 7, 0, comm, stream);
	CUDA("cuStreamSynchronize", stream);
	TRUE(at[0] == (float)(size * (size + 1) / 2));
}

void plug(void) {
	start();
	void *stream = new_stream(), *a = connect("a"), *b = connect("b");
	float *first = nccl_alloc_plug(2 << 20, rank, stream);
	TRUE(first && symmem_is_open());
	CONTAINS("\"alone\":true", symmem_describe(sizeof text_, text_, &length_));
	TRUE(nccl_allocator_register_segments_with_comm((uintptr_t)a) == 0);
	reduces(a, first, stream);
	float *second = nccl_alloc_plug(200 << 20, rank, stream); /* the pool grows */
	TRUE(second);
	TRUE(nccl_allocator_register_segments_with_comm((uintptr_t)b) == 0);
	TRUE(nccl_allocator_register_segments_with_comm((uintptr_t)a) == 0);
	reduces(a, second, stream);
	reduces(b, first, stream);
	reduces(b, second + 4096, stream);
	TRUE(!nccl_alloc_plug(2 << 20, rank + 1, stream)); /* another rank's GPU */
	/* A rank that allocates one more is found out before anything is registered. */
	if (rank == 1) TRUE(nccl_alloc_plug(4 << 20, rank, stream));
	TRUE(nccl_alloc_plug(400 << 20, rank, stream));
	TRUE(nccl_allocator_register_segments_with_comm((uintptr_t)a) == 5);
	TRUE(symmem_last_error(0, NULL, NULL) == SYMMEM_ERR_DIVERGENCE);
	CONTAINS("alloc 4194304 B", symmem_last_error(sizeof text_, text_, &length_));
	nccl_free_plug(first, 2 << 20, rank, stream);
	DO(symmem_plug_forget((uintptr_t)b));
	NCCL("ncclCommAbort", a);
	NCCL("ncclCommAbort", b);
}

void attach(void) {
	start();
	char options[64];
	snprintf(options, sizeof options, "{\"backend\": \"nccl\", \"device\": %d}", rank);
	uint64_t world = open_with(options), attachment, again;
	void *stream = new_stream(), *comm = connect("torch");
	float *a, *b;
	DO(symmem_alloc(0, 2 << 20, (uint64_t)(uintptr_t)stream, (void **)&a));
	DO(symmem_attach(world, (uint64_t)(uintptr_t)comm, 2, "pg", &attachment));
	DO(symmem_attach(world, (uint64_t)(uintptr_t)comm, 2, "pg", &again));
	TRUE(attachment == again && symmem_is_symmetric(world, 2 << 20, a));
	uint64_t own = 0, window = 0, offset = 0;
	DO(symmem_group_set_path(world, SYMMEM_PATH_WINDOW));
	DO(symmem_nccl_window(world, 4, a + 1, &own, &window, &offset));
	int members = 0;
	NCCL("ncclCommCount", (void *)(uintptr_t)own, &members);
	TRUE(members == size && window != 0 && offset % 512 == sizeof *a);
	DO(symmem_group_set_path(world, SYMMEM_PATH_AUTO));
	CONTAINS("\"name\":\"pg\",\"windows\":1", symmem_stats(sizeof text_, text_, &length_));
	DO(symmem_alloc(0, 200 << 20, (uint64_t)(uintptr_t)stream, (void **)&b));
	DO(symmem_scope_end(world, (uint64_t)(uintptr_t)stream, NULL));
	CONTAINS("\"name\":\"pg\",\"windows\":2", symmem_stats(sizeof text_, text_, &length_));
	reduces(comm, a, stream);
	reduces(comm, b, stream);
	DO(symmem_free(b));
	DO(symmem_trim(0, 2 << 20));
	CONTAINS("\"name\":\"pg\",\"windows\":1", symmem_stats(sizeof text_, text_, &length_));
	reduces(comm, a, stream);
	DO(symmem_detach(attachment, 1));
	WANT(SYMMEM_ERR_CLOSED, symmem_detach(attachment, 1));
	DO(symmem_attach(world, (uint64_t)(uintptr_t)comm, 2, "pg", &attachment));
	NCCL("ncclCommAbort", comm); /* the engine ends its communicator first */
	DO(symmem_free(a));
	DO(symmem_close(0));
}

/* norm adds up rows of ones, a residual of zeros, and divides by the root of the mean square. */
void norm(void) {
	start();
	char options[64];
	snprintf(options, sizeof options, "{\"backend\": \"nccl\", \"device\": %d}", rank);
	uint64_t world = open_with(options);
	void *stream = new_stream();
	uint64_t on = (uint64_t)(uintptr_t)stream;
	enum { ROWS = 3, HIDDEN = 256, ONE = 0x3f80 };
	uint16_t *x, sum = size == 2 ? 0x4000 : 0x4080; /* 2 or 4 */
	DO(symmem_alloc(0, 1 << 20, on, (void **)&x));
	uint16_t *residual = x + ROWS * HIDDEN, *weight = residual + ROWS * HIDDEN;
	CUDA("cuStreamSynchronize", stream);
	for (int i = 0; i < ROWS * HIDDEN; i++) x[i] = ONE, residual[i] = 0, weight[i % HIDDEN] = ONE;
	DO(symmem_all_reduce_rms_norm(world, ROWS, HIDDEN, 0, x, residual, weight, x, on));
	DO(symmem_stream_synchronize(on));
	for (int i = 0; i < ROWS * HIDDEN; i++) TRUE(residual[i] == sum && x[i] == ONE);
	uint8_t *quantized = (uint8_t *)(weight + HIDDEN);
	float *scales = (float *)(quantized + ROWS * HIDDEN);
	struct symmem_norm quantizing = {
		.size = sizeof quantizing, .rows = ROWS, .hidden = HIDDEN, .type = SYMMEM_BFLOAT16,
		.quant = SYMMEM_QUANT_PER_ROW, .input = x, .residual = residual, .weight = weight,
		.quantized = quantized, .scales = scales,
	};
	DO(symmem_norm(world, &quantizing, on));
	DO(symmem_stream_synchronize(on));
	for (int i = 0; i < ROWS * HIDDEN; i++) TRUE(quantized[i] == 0x7e); /* 448 */
	for (int i = 0; i < ROWS; i++) TRUE(scales[i] == 1.0f / 448);
	uint16_t *all = x + (1 << 16); /* one row for each rank */
	for (int i = 0; i < size * HIDDEN; i++) all[i] = ONE;
	for (int i = 0; i < HIDDEN; i++) residual[i] = 0;
	struct symmem_norm scattered = {
		.size = sizeof scattered, .rows = 1, .hidden = HIDDEN, .type = SYMMEM_BFLOAT16,
		.input = all, .residual = residual, .weight = weight, .output = all + rank * HIDDEN,
	};
	DO(symmem_scattered_norm(world, &scattered, on));
	DO(symmem_stream_synchronize(on));
	for (int i = 0; i < HIDDEN; i++) TRUE(residual[i] == sum && all[rank * HIDDEN + i] == ONE);
	quantizing.size--;
	WANT(SYMMEM_ERR_INVALID, symmem_norm(world, &quantizing, on));
	WANT(SYMMEM_ERR_INVALID,
	     symmem_all_reduce_rms_norm(world, ROWS, HIDDEN, 0, x, x, weight, x, on));
	DO(symmem_free(x));
	DO(symmem_close(0));
}

/* dispatched_row allocates what a dispatch writes if each rank sends a row to this rank's expert. */
static char *dispatched_row(struct symmem_permute *p, uint64_t stream) {
	struct symmem_route route = {
		.size = sizeof route, .experts = p->experts, .top_k = 1, .max_tokens = 1,
		.hidden = p->hidden, .type = p->type,
	};
	struct symmem_route_layout layout;
	char *all;
	DO(symmem_route_layout(&route, size, &layout));
	DO(symmem_alloc(0, (size_t)layout.bytes, stream, (void **)&all));
	for (int r = 0; r < size; r++) {
		((int32_t *)(all + layout.ids))[r] = rank;
		((int32_t *)(all + layout.counts))[r] = 1;
	}
	return all;
}

/* capture lets the owner of a stream capture it, while the pool grows. */
void capture(void) {
	start();
	char options[64];
	snprintf(options, sizeof options, "{\"backend\": \"nccl\", \"device\": %d}", rank);
	uint64_t world = open_with(options);
	void *stream = new_stream(), *graph, *ready;
	uint64_t on = (uint64_t)(uintptr_t)stream;
	float *a, *late;
	DO(symmem_alloc(0, 2 << 20, on, (void **)&a));
	DO(symmem_scope_end(world, on, NULL));
	WANT(SYMMEM_ERR_UNSUPPORTED, symmem_alloc_on(0, 1, rank + 1, on, (void **)&late));
	CONTAINS("this rank uses device", symmem_last_error(sizeof text_, text_, &length_));
	WANT(SYMMEM_ERR_UNSUPPORTED, symmem_alloc_on(0, 1, -1, on, (void **)&late));
	struct symmem_permute permute = {
		.size = sizeof permute, .experts = size, .top_k = 1, .max_tokens = 1, .hidden = 8,
		.type = SYMMEM_BFLOAT16,
	};
	struct symmem_permute_layout layout;
	char *dispatched = dispatched_row(&permute, on), *permuted;
	DO(symmem_permute_layout(&permute, size, &layout));
	DO(symmem_alloc(0, (size_t)layout.bytes, on, (void **)&permuted));
	permute.dispatched = dispatched, permute.permuted = permuted;
	int32_t *count = (int32_t *)(permuted + layout.counts);
	CUDA("cuStreamBeginCapture_v2", stream, 2);
	DO(symmem_permute(world, &permute, on));
	WANT(SYMMEM_ERR_CAPTURING, symmem_alloc_on(0, 1, rank, on, (void **)&late));
	DO(symmem_all_reduce(world, 1, SYMMEM_FLOAT32, SYMMEM_SUM, 0, a, a, on));
	DO(symmem_alloc(0, 200 << 20, on, (void **)&late));
	WANT(SYMMEM_ERR_CAPTURING, symmem_scope_end(world, on, NULL));
	WANT(SYMMEM_ERR_CAPTURING, symmem_stream_synchronize(on));
	CONTAINS("\"path\":\"plain\"", symmem_explain(world, SYMMEM_ALL_REDUCE, 1, SYMMEM_FLOAT32, late,
	                                              late, sizeof text_, text_, &length_));
	DO(symmem_all_reduce(world, 1, SYMMEM_FLOAT32, SYMMEM_SUM, 0, late, late, on));
	CUDA("cuStreamEndCapture", stream, &graph);
	CUDA("cuGraphInstantiateWithFlags", &ready, graph, 0ULL);
	for (int i = 0; i < 10; i++) {
		a[0] = late[0] = 1;
		*count = 0;
		CUDA("cuGraphLaunch", ready, stream);
		CUDA("cuStreamSynchronize", stream);
		TRUE(a[0] == (float)size && late[0] == (float)size && *count == size);
	}
	DO(symmem_scope_end(world, on, NULL));
	TRUE(symmem_is_symmetric(world, 200 << 20, late));
	CUDA("cuGraphExecDestroy", ready);
	CUDA("cuGraphDestroy", graph);
	DO(symmem_free(a));
	DO(symmem_free(late));
	DO(symmem_free(dispatched));
	DO(symmem_free(permuted));
	DO(symmem_alloc_on(0, 1, rank, on, (void **)&a));
	DO(symmem_free(a));
	DO(symmem_stream_forget(on));
	DO(symmem_streams_idle(1));
	CUDA("cuStreamDestroy_v2", stream);
	DO(symmem_barrier(world, 0));
	DO(symmem_stream_synchronize(0));
	DO(symmem_close(0));
}

/* add makes an all-reduce over the memory of each world in turn, on one stream. */
static void add(uint64_t world, uint64_t other, float *at, void *stream) {
	uint64_t s = (uint64_t)(uintptr_t)stream;
	*at = 1;
	DO(symmem_all_reduce(world, 1, SYMMEM_FLOAT32, SYMMEM_SUM, 0, at, at, s));
	DO(symmem_all_reduce(other, 1, SYMMEM_FLOAT32, SYMMEM_SUM, 0, at, at, s));
	DO(symmem_stream_synchronize(s));
	TRUE(*at == (float)(size * size));
}

/* host_world_beside_gpus uses a stream of the host backend, whose number is no CUDA stream. */
static void host_world_beside_gpus(void) {
	uint64_t world = open_world("host", ", \"backend\": \"host\"", rank, size), event;
	int32_t ones = 1;
	DO(symmem_all_reduce(world, 1, SYMMEM_INT32, SYMMEM_SUM, 0, &ones, &ones, 77));
	DO(symmem_event_record(77, &event));
	DO(symmem_event_synchronize(event));
	DO(symmem_stream_synchronize(77));
	TRUE(ones == size);
	DO(symmem_world_close(world, 0));
}

void gpu_worlds(void) {
	start();
	char options[64];
	int pool;
	float *a, *b;
	snprintf(options, sizeof options, "{\"backend\": \"nccl\", \"device\": %d}", rank);
	uint64_t trainer = open_with(options);
	snprintf(options, sizeof options, ", \"backend\": \"nccl\", \"device\": %d", rank);
	uint64_t engine = open_world("gpu", options, size - 1 - rank, size);
	void *stream = new_stream();
	uint64_t s = (uint64_t)(uintptr_t)stream, event;
	DO(symmem_pool_open(engine, 0, NULL, &pool));
	DO(symmem_alloc(0, 2 << 20, s, (void **)&a));
	DO(symmem_alloc(pool, 2 << 20, s, (void **)&b));
	add(trainer, engine, a, stream);
	add(engine, trainer, b, stream);
	TRUE(symmem_is_symmetric(trainer, 4, a) && symmem_is_symmetric(engine, 4, b));
	DO(symmem_event_record(s, &event));
	DO(symmem_stream_wait(0, event));
	DO(symmem_event_synchronize(event));
	host_world_beside_gpus();
	DO(symmem_free(a));
	DO(symmem_close(0));
	DO(symmem_event_synchronize(event));
	add(engine, engine, b, stream);
	DO(symmem_free(b));
	DO(symmem_world_close(engine, 0));
}
