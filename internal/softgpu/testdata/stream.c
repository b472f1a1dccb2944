/* Streams, events, captures, graphs. */
#include "scene.h"

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static char *bytes_at(CUdeviceptr at) { return (char *)(uintptr_t)at; }

static void pass_gate(void *data) {
    (void)data;
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
}

static void count(void *data) { ++*(int *)data; }

static void forbidden(void *data) {
    *(int *)data = cuCtxSynchronize();
}

/* Work runs in order, and is reported as pending before. Streams wait for the events of other
 * streams. */
static void scene_order(struct rank *r) {
    char *at = bytes_at(r->segment.at);
    CUstream other;
    CUevent event;
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventQuery(event));
    pthread_mutex_lock(&gate);
    MUST(cuLaunchHostFunc(r->stream, pass_gate, NULL));
    MUST(cuMemsetD8Async(r->segment.at, 3, MIB, r->stream));
    MUST(cuEventRecord(event, r->stream));
    MUST(cuStreamWaitEvent(other, event, 0));
    MUST(cuMemcpyAsync(r->segment.at + MIB, r->segment.at, MIB, other));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(r->stream));
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(other));
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    CHECK(at[2 * MIB - 1] == 0);
    pthread_mutex_unlock(&gate);
    MUST(cuStreamSynchronize(other));
    CHECK(at[2 * MIB - 1] == 3);
    MUST(cuEventSynchronize(event));
    MUST(cuEventDestroy_v2(event));
    MUST(cuStreamDestroy_v2(other));
}

static void scene_host(struct rank *r) {
    char *at = bytes_at(r->segment.at), host[64];
    int code = 0;
    MUST(cuLaunchHostFunc(r->stream, forbidden, &code));
    sync_rank(r);
    CHECK(code == CUDA_ERROR_NOT_PERMITTED);
    memset(host, 9, sizeof host);
    pthread_mutex_lock(&gate);
    MUST(cuLaunchHostFunc(r->stream, pass_gate, NULL));
    MUST(cuMemcpyHtoDAsync_v2(r->segment.at, host, sizeof host, r->stream));
    memset(host, 0, sizeof host);
    pthread_mutex_unlock(&gate);
    MUST(cuMemcpyDtoHAsync_v2(host, r->segment.at, sizeof host, r->stream));
    CHECK(at[63] == 9 && host[63] == 9);
}

/* A stream waits for a word of pinned memory. Memory that is allocated in stream order belongs to a
 * device. */
static void scene_words(struct rank *r) {
    CUdeviceptr memory;
    size_t before, during, after, total;
    unsigned *word;
    MUST(cuMemAllocHost_v2((void **)&word, 64));
    MUST(cuMemGetInfo_v2(&before, &total));
    MUST(cuStreamWaitValue32_v2(r->stream, (CUdeviceptr)(uintptr_t)word, 5, 0));
    MUST(cuMemAllocAsync(&memory, MIB, r->stream));
    MUST(cuMemsetD8Async(memory, 6, MIB, r->stream));
    MUST(cuMemcpyAsync(r->segment.at, memory, MIB, r->stream));
    MUST(cuMemFreeAsync(memory, r->stream));
    MUST(cuMemGetInfo_v2(&during, &total));
    CHECK(before - during == MIB);
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(r->stream));
    __atomic_store_n(word, 6, __ATOMIC_SEQ_CST);
    sync_rank(r);
    CHECK(bytes_at(r->segment.at)[MIB - 1] == 6);
    MUST(cuMemGetInfo_v2(&after, &total));
    CHECK(after == before);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(memory, r->stream));
    MUST(cuMemFreeHost(word));
}

static void scene_time(struct rank *r) {
    CUevent from, to;
    float milliseconds;
    MUST(cuEventCreate(&from, 0));
    MUST(cuEventCreate(&to, 0));
    EXPECT(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&milliseconds, from, to));
    MUST(cuEventRecord(from, r->stream));
    MUST(cuEventRecord(to, r->stream));
    MUST(cuEventSynchronize(to));
    MUST(cuEventElapsedTime(&milliseconds, from, to));
    CHECK(milliseconds >= 0);
    MUST(cuEventDestroy_v2(from));
    MUST(cuEventDestroy_v2(to));
}

static CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec exec;
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cuGraphDestroy(graph));
    return exec;
}

/* A graph of two streams that fork and join. */
static void scene_graph(struct rank *r) {
    char *at = bytes_at(r->segment.at);
    int counter = 0;
    CUstream other;
    CUevent fork, join, outside;
    CUgraph graph;
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&fork, 2));
    MUST(cuEventCreate(&join, 2));
    MUST(cuEventCreate(&outside, 2));
    memset(at, 0, 2 * MIB);
    MUST(cuStreamBeginCapture_v2(r->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    MUST(cuMemsetD8Async(r->segment.at, 5, MIB, r->stream));
    MUST(cuEventRecord(fork, r->stream));
    MUST(cuStreamWaitEvent(other, fork, 0));
    MUST(cuMemcpyAsync(r->segment.at + MIB, r->segment.at, MIB, other));
    MUST(cuLaunchHostFunc(other, count, &counter));
    MUST(cuEventRecord(join, other));
    MUST(cuStreamWaitEvent(r->stream, join, 0));
    MUST(cuEventRecordWithFlags(outside, r->stream, CU_EVENT_RECORD_EXTERNAL));
    MUST(cuStreamEndCapture(r->stream, &graph));
    MUST(cuEventQuery(outside));
    CHECK(at[0] == 0 && counter == 0);
    CUgraphExec exec = instantiate(graph);
    for (int i = 0; i < 100; i++)
        MUST(cuGraphLaunch(exec, i % 2 ? r->stream : other));
    MUST(cuEventSynchronize(outside));
    MUST(cuStreamSynchronize(r->stream));
    MUST(cuStreamSynchronize(other));
    CHECK(at[2 * MIB - 1] == 5 && counter == 100);
    MUST(cuGraphExecDestroy(exec));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, r->stream));
    MUST(cuEventDestroy_v2(fork));
    MUST(cuEventDestroy_v2(join));
    MUST(cuEventDestroy_v2(outside));
    MUST(cuStreamDestroy_v2(other));
}

static int arrived;

/* Waits until two nodes have arrived. Nodes that wait for each other must run concurrently. */
static void meet(void *unused) {
    (void)unused;
    __atomic_add_fetch(&arrived, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 20000 && __atomic_load_n(&arrived, __ATOMIC_SEQ_CST) < 2; i++)
        usleep(1000);
    CHECK(__atomic_load_n(&arrived, __ATOMIC_SEQ_CST) >= 2);
}

static void slowly(void *counter) {
    usleep(50000);
    __atomic_add_fetch((int *)counter, 1, __ATOMIC_SEQ_CST);
}

/* Captures a slow node after a wait for an event, and adds a node that records the event. */
static CUgraphExec capture_turn(CUstream stream, CUevent event, int *counter) {
    CUgraph graph, under;
    CUstreamCaptureStatus status;
    unsigned long long id;
    const CUgraphNode *tips;
    size_t count;
    CUgraphNode first, second, record;
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL));
    MUST(cuLaunchHostFunc(stream, slowly, counter));
    MUST(cuStreamGetCaptureInfo_v2(stream, &status, &id, &under, &tips, &count));
    CHECK(count == 1 && under != NULL);
    first = tips[0];
    MUST(cuGraphAddEventRecordNode(&record, under, &first, 1, event));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(under));
    MUST(cuLaunchHostFunc(stream, slowly, counter));
    MUST(cuStreamGetCaptureInfo_v2(stream, &status, &id, &under, &tips, &count));
    CHECK(count == 1 && tips[0] != first);
    second = tips[0];
    MUST(cuGraphRemoveDependencies(under, &first, &record, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphRemoveDependencies(under, &first, &record, 1));
    MUST(cuGraphAddDependencies_v2(under, &second, &record, NULL, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(under, &record, &first, 1));
    MUST(cuStreamEndCapture(stream, &graph));
    CHECK(graph == under);
    MUST(cuGraphGetNodes(graph, NULL, &count));
    CHECK(count == 4);
    CUgraphNode from[8], to[8];
    count = 8;
    MUST(cuGraphGetEdges(graph, from, to, &count));
    CHECK(count == 3);
    return instantiate(graph);
}

/* Nodes wait only for the nodes that they depend on. Launches wait for each other through
 * events. */
static void scene_branches(struct rank *r) {
    CUstream other;
    CUevent fork, join, turn;
    CUgraph graph;
    int counter = 0;
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&fork, 2));
    MUST(cuEventCreate(&join, 2));
    MUST(cuEventCreate(&turn, 2));
    MUST(cuStreamBeginCapture_v2(r->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(cuEventRecord(fork, r->stream));
    MUST(cuStreamWaitEvent(other, fork, 0));
    MUST(cuLaunchHostFunc(r->stream, meet, NULL));
    MUST(cuLaunchHostFunc(other, meet, NULL));
    MUST(cuEventRecord(join, other));
    MUST(cuStreamWaitEvent(r->stream, join, 0));
    MUST(cuLaunchHostFunc(r->stream, count, &counter));
    MUST(cuStreamEndCapture(r->stream, &graph));
    CUgraphExec exec = instantiate(graph);
    MUST(cuGraphLaunch(exec, r->stream));
    MUST(cuStreamSynchronize(r->stream));
    CHECK(counter == 1);
    MUST(cuGraphExecDestroy(exec));

    counter = 0;
    CUgraphExec one = capture_turn(r->stream, turn, &counter);
    CUgraphExec two = capture_turn(other, turn, &counter);
    MUST(cuEventQuery(turn));
    MUST(cuGraphLaunch(one, r->stream));
    EXPECT(CUDA_ERROR_NOT_READY, cuEventQuery(turn));
    MUST(cuGraphLaunch(two, other));
    MUST(cuGraphLaunch(two, r->stream));
    MUST(cuGraphLaunch(one, other));
    MUST(cuStreamSynchronize(other));
    CHECK(__atomic_load_n(&counter, __ATOMIC_SEQ_CST) == 8);
    MUST(cuEventQuery(turn));
    MUST(cuStreamSynchronize(r->stream));
    MUST(cuGraphExecDestroy(one));
    MUST(cuGraphExecDestroy(two));
    MUST(cuEventDestroy_v2(fork));
    MUST(cuEventDestroy_v2(join));
    MUST(cuEventDestroy_v2(turn));
    MUST(cuStreamDestroy_v2(other));
}

/* Ends a capture that must be invalidated. */
static void lost(CUstream stream, CUresult code) {
    CUgraph graph;
    EXPECT(code, cuStreamEndCapture(stream, &graph));
    CHECK(graph == NULL);
    CUstreamCaptureStatus status;
    MUST(cuStreamIsCapturing(stream, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
}

static void *query_elsewhere(void *event) {
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuEventQuery(event));
    return NULL;
}

static void *query_relaxed(void *event) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    MUST(cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    MUST(cuEventQuery(event));
    return NULL;
}

static void on_thread(void *(*work)(void *), void *arg) {
    pthread_t thread;
    pthread_create(&thread, NULL, work, arg);
    pthread_join(thread, NULL);
}

static void scene_capture_rules(struct rank *r) {
    CUgraph graph;
    CUstream other;
    CUevent event;
    void *pinned;
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&event, 2));
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(r->stream, &graph));

    MUST(cuStreamBeginCapture_v2(r->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture_v2(r->stream, 0));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(r->stream));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
           cuMemsetD8Async(r->segment.at, 0, 1, r->stream));
    lost(r->stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    MUST(cuStreamBeginCapture_v2(r->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAllocHost_v2(&pinned, 64));
    lost(r->stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    MUST(cuStreamBeginCapture_v2(r->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(cuMemAllocHost_v2(&pinned, 64));
    MUST(cuStreamEndCapture(r->stream, &graph));
    MUST(cuGraphDestroy(graph));
    MUST(cuMemFreeHost(pinned));

    MUST(cuEventRecord(event, other));
    MUST(cuStreamSynchronize(other));
    MUST(cuStreamBeginCapture_v2(r->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    on_thread(query_relaxed, event);
    on_thread(query_elsewhere, event);
    lost(r->stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    MUST(cuStreamBeginCapture_v2(r->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(r->stream, event, 0));
    lost(r->stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    MUST(cuStreamBeginCapture_v2(r->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    MUST(cuEventRecord(event, r->stream));
    MUST(cuStreamWaitEvent(other, event, 0));
    MUST(cuMemsetD8Async(r->segment.at, 0, 1, other));
    EXPECT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(other, &graph));
    lost(r->stream, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    EXPECT(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(event));
    MUST(cuEventDestroy_v2(event));
    MUST(cuStreamDestroy_v2(other));
}

int main(void) {
    struct rank r = {.number = 0, .ranks = 1};
    open_rank(&r);
    scene_order(&r);
    scene_host(&r);
    scene_words(&r);
    scene_time(&r);
    scene_graph(&r);
    scene_branches(&r);
    scene_capture_rules(&r);
    close_rank(&r);
    return 0;
}
