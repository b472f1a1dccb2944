/* Checks that calls that hang in NCCL hang here until an abort, and that other calls do not
 * hang. */
#include <stdatomic.h>

#include "scene.h"

static pthread_barrier_t apart;

struct late { /* aborts a communicator on another thread after a delay */
    pthread_t thread;
    ncclComm_t *comm;
    struct rank *rank;
};

static void *abort_main(void *arg) {
    struct late *l = arg;
    usleep(30000); /* usually the other thread hangs by then; the test also passes if not */
    MUST(ncclCommAbort(*l->comm));
    return NULL;
}

static void abort_later(struct late *l, struct rank *r) {
    *l = (struct late){.comm = &r->comm, .rank = r};
    pthread_create(&l->thread, NULL, abort_main, l);
}

static void aborted(struct late *l) {
    pthread_join(l->thread, NULL);
    l->rank->comm = NULL;
}

static ncclResult_t sum(struct rank *r) {
    char *at = (char *)(uintptr_t)r->segment.at;
    return ncclAllReduce(at, at + MIB, 1000, ncclFloat32, ncclSum, r->comm, r->stream);
}

/* Rank 1 omits a collective. The kernels of the other ranks run until they abort. */
static void scene_kernel(struct rank *r) {
    struct late late;
    MUST(sum(r));
    sync_rank(r);
    if (r->number != 1) {
        MUST(sum(r));
        abort_later(&late, r);
        sync_rank(r);
        aborted(&late);
    }
    pthread_barrier_wait(&apart);
}

static void scene_windowed_kernel(struct rank *r) {
    register_rank(r);
    scene_kernel(r);
    if (r->number != 1)
        r->window = NULL;
}

/* Checks the result of a host call that is aborted, or starts after the abort. */
static void ended(ncclResult_t result) {
    CHECK(result == ncclInternalError || result == ncclInvalidArgument);
}

/* The first collective establishes connections, which blocks the host. */
static void scene_connection(struct rank *r) {
    struct late late;
    if (r->number != 1) {
        abort_later(&late, r);
        ended(sum(r));
        aborted(&late);
    }
    pthread_barrier_wait(&apart);
}

static void scene_registration(struct rank *r) {
    struct late late;
    register_rank(r);
    if (r->number != 1) {
        ncclWindow_t other;
        void *at = (void *)(uintptr_t)r->segment.alias;
        abort_later(&late, r);
        ended(ncclCommWindowRegister(r->comm, at, SEGMENT, &other, 1));
        aborted(&late);
        r->window = NULL;
    }
    pthread_barrier_wait(&apart);
}

static CUgraphExec capture_sum(struct rank *r) {
    CUgraph graph;
    CUgraphExec exec;
    MUST(cuStreamBeginCapture_v2(r->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    MUST(sum(r));
    MUST(cuStreamEndCapture(r->stream, &graph));
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cuGraphDestroy(graph));
    return exec;
}

static _Atomic int destroyed[RANKS];

static void *destroy_main(void *arg) {
    struct rank *r = arg;
    MUST(r->argument != NULL ? ncclCommAbort(r->comm) : ncclCommDestroy(r->comm));
    atomic_store(&destroyed[r->number], 1);
    return NULL;
}

/* Graphs replay. Neither destroy nor abort returns before the graphs are destroyed. */
static void scene_graph(struct rank *r) {
    pthread_t thread;
    float *send = (float *)(uintptr_t)r->segment.at, *recv = send + MIB / 4;
    if (r->argument != NULL)
        register_rank(r);
    CUgraphExec exec = capture_sum(r);
    for (int i = 0; i < 200; i++) {
        send[999] = (float)(i + r->number);
        MUST(cuGraphLaunch(exec, r->stream));
        sync_rank(r);
        CHECK(recv[999] == (float)(i * r->ranks + r->ranks * (r->ranks - 1) / 2));
    }
    atomic_store(&destroyed[r->number], 0);
    pthread_create(&thread, NULL, destroy_main, r);
    usleep(20000); /* time for destroy to return, which it must not */
    CHECK(atomic_load(&destroyed[r->number]) == 0);
    MUST(cuGraphExecDestroy(exec));
    pthread_join(thread, NULL);
    r->comm = NULL;
    r->window = NULL;
}

/* Registration during a capture returns code 1 and invalidates the capture. */
static void scene_captured_registration(struct rank *r) {
    CUgraph graph;
    void *at = (void *)(uintptr_t)r->segment.at;
    MUST(cuStreamBeginCapture_v2(r->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    EXPECT(1, ncclCommWindowRegister(r->comm, at, SEGMENT, &r->window, 1));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, sum(r) == 1 ? 901 : 0);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(r->stream, &graph));
    register_rank(r);
    MUST(sum(r));
    sync_rank(r);
}

/* Initializes a nonblocking communicator without the other rank. */
static void scene_init(void) {
    ncclUniqueId id;
    ncclConfig_t config = {.size = sizeof config, .magic = 0xcafebeef, .version = 22700};
    ncclResult_t state;
    struct rank r = {.number = 0, .ranks = 2};
    open_rank(&r);
    MUST(ncclGetUniqueId(&id));
    EXPECT(ncclInProgress, ncclCommInitRankScalable(&r.comm, 2, 0, 1, &id, &config));
    MUST(ncclCommGetAsyncError(r.comm, &state));
    CHECK(state == ncclInProgress);
    EXPECT(ncclInvalidArgument, sum(&r));
    MUST(ncclCommAbort(r.comm));
    r.comm = NULL;
    close_rank(&r);
}

int main(void) {
    pthread_barrier_init(&apart, NULL, RANKS);
    play(RANKS, scene_kernel, NULL);
    play(RANKS, scene_windowed_kernel, NULL);
    play(RANKS, scene_connection, NULL);
    play(RANKS, scene_registration, NULL);
    play(RANKS, scene_graph, NULL);
    play(RANKS, scene_graph, &apart);
    play(RANKS, scene_captured_registration, NULL);
    scene_init();
    return 0;
}
