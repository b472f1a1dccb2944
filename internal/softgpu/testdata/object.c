/* A user object lives as long as the program, a graph, or anything created from the graph holds
 * it. */
#include <stdatomic.h>
#include <time.h>

#include "scene.h"

static _Atomic int gone, refused;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

/* Destructors must not call CUDA. */
static void destroy(void *data) {
    (void)data;
    atomic_store(&refused, (int)cuCtxSynchronize());
    atomic_fetch_add(&gone, 1);
}

static void pass_gate(void *data) {
    (void)data;
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
}

static void wait_ms(long milliseconds) {
    struct timespec nap = {.tv_nsec = 1000000};
    while (milliseconds-- > 0)
        nanosleep(&nap, NULL);
}

/* Waits until destructors have run. They run soon, on a thread for which no call waits. */
static void await_gone(int want) {
    for (int i = 0; atomic_load(&gone) < want && i < 30000; i++)
        wait_ms(1);
    CHECK(atomic_load(&gone) == want);
}

/* Begins a capture that holds a new object. */
static CUgraph begin_holding(struct rank *r) {
    CUuserObject object;
    CUstreamCaptureStatus status;
    unsigned long long id;
    CUgraph graph;
    MUST(cuStreamBeginCapture_v2(r->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(cuStreamGetCaptureInfo_v2(r->stream, &status, &id, &graph, NULL, NULL));
    MUST(cuUserObjectCreate(&object, r, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    MUST(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    return graph;
}

static void scene_of_the_program(void) {
    CUuserObject object;
    int before = atomic_load(&gone);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuUserObjectCreate(&object, NULL, destroy, 1, 0));
    MUST(cuUserObjectCreate(&object, NULL, destroy, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    MUST(cuUserObjectRetain(object, 1));
    MUST(cuUserObjectRelease(object, 2));
    wait_ms(20);
    CHECK(atomic_load(&gone) == before);
    MUST(cuUserObjectRelease(object, 1));
    await_gone(before + 1);
    CHECK(atomic_load(&refused) == CUDA_ERROR_NOT_PERMITTED);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuUserObjectRelease(object, 1));
}

/* A graph, an instantiated graph and a running launch hold an object. */
static void scene_of_a_graph(struct rank *r) {
    int before = atomic_load(&gone);
    CUgraph graph = begin_holding(r), ended;
    CUgraphExec exec;
    MUST(cuLaunchHostFunc(r->stream, pass_gate, NULL));
    MUST(cuStreamEndCapture(r->stream, &ended));
    CHECK(ended == graph);
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cuGraphDestroy(graph));
    pthread_mutex_lock(&gate);
    MUST(cuGraphLaunch(exec, r->stream));
    MUST(cuGraphExecDestroy(exec));
    wait_ms(20);
    CHECK(atomic_load(&gone) == before);
    pthread_mutex_unlock(&gate);
    await_gone(before + 1);
    sync_rank(r);
}

/* A graph that is a node of another graph. */
static void scene_of_a_nested_graph(struct rank *r) {
    int before = atomic_load(&gone);
    CUgraph inner, outer;
    CUgraphExec exec;
    begin_holding(r);
    MUST(cuMemsetD8Async(r->segment.at, 1, 1, r->stream));
    MUST(cuStreamEndCapture(r->stream, &inner));
    MUST(cuGraphInstantiateWithFlags(&exec, inner, 0));
    MUST(cuStreamBeginCapture_v2(r->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(cuGraphLaunch(exec, r->stream));
    MUST(cuStreamEndCapture(r->stream, &outer));
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(inner));
    wait_ms(20);
    CHECK(atomic_load(&gone) == before);
    MUST(cuGraphDestroy(outer));
    await_gone(before + 1);
}

/* A capture that is invalidated, and a reference that is released. */
static void scene_of_lost_captures(struct rank *r) {
    int before = atomic_load(&gone);
    CUgraph graph;
    CUuserObject object;
    begin_holding(r);
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(r->stream));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(r->stream, &graph));
    await_gone(before + 1);
    graph = begin_holding(r);
    MUST(cuUserObjectCreate(&object, NULL, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    MUST(cuGraphRetainUserObject(graph, object, 1, 0));
    MUST(cuUserObjectRelease(object, 1));
    wait_ms(20);
    CHECK(atomic_load(&gone) == before + 1);
    MUST(cuGraphReleaseUserObject(graph, object, 1));
    await_gone(before + 2);
    MUST(cuStreamEndCapture(r->stream, &graph));
    MUST(cuGraphDestroy(graph));
    await_gone(before + 3);
}

int main(void) {
    struct rank r = {.number = 0, .ranks = 1};
    open_rank(&r);
    scene_of_the_program();
    scene_of_a_graph(&r);
    scene_of_a_nested_graph(&r);
    scene_of_lost_captures(&r);
    close_rank(&r);
    return 0;
}
