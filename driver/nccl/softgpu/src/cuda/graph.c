/* Graphs: works in an order that respects all dependencies, which is that of their capture. */
#include <stdlib.h>

#include "driver.h"

struct exec {
    _Atomic int references; /* of the handle and of launches */
    pthread_mutex_t turn;   /* launches of one exec never overlap */
    struct graph *graph;
};

struct launch {
    struct exec *exec;
    size_t count;
    struct work *works[];
};

struct graph *graph_new(void) {
    struct graph *g = calloc(1, sizeof *g);
    if (g == NULL)
        abort();
    return g;
}

/* Appends a node, whose reference goes to the graph. */
void graph_add(struct graph *g, struct work *w) {
    if (g->count == g->room) {
        g->room = g->room == 0 ? 16 : 2 * g->room;
        g->nodes = realloc(g->nodes, g->room * sizeof *g->nodes);
        if (g->nodes == NULL)
            abort();
    }
    g->nodes[g->count++] = w;
}

void graph_free(struct graph *g) {
    for (size_t i = 0; i < g->count; i++)
        work_release(g->nodes[i]);
    free(g->nodes);
    free(g);
}

static void exec_release(struct exec *e) {
    if (atomic_fetch_sub(&e->references, 1) > 1)
        return;
    graph_free(e->graph);
    pthread_mutex_destroy(&e->turn);
    free(e);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    ENTER(CUDA_ERROR_OUT_OF_MEMORY);
    (void)flags;
    if (exec == NULL || !handle_live(GRAPH, graph))
        return CUDA_ERROR_INVALID_VALUE;
    struct exec *e = calloc(1, sizeof *e);
    if (e == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_init(&e->references, 1);
    pthread_mutex_init(&e->turn, NULL);
    e->graph = graph_new();
    for (size_t i = 0; i < graph->count; i++)
        graph_add(e->graph, work_keep(graph->nodes[i]));
    handle_add(EXEC, e);
    *exec = e;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (count == NULL || !handle_live(GRAPH, graph))
        return CUDA_ERROR_INVALID_VALUE;
    if (nodes != NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    *count = graph->count;
    return CUDA_SUCCESS;
}

static void launch_run(void *arg, int device) {
    struct launch *l = arg;
    pthread_mutex_lock(&l->exec->turn);
    for (size_t i = 0; i < l->count; i++)
        work_run(l->works[i], device);
    pthread_mutex_unlock(&l->exec->turn);
}

static void launch_drop(void *arg) {
    struct launch *l = arg;
    for (size_t i = 0; i < l->count; i++)
        work_release(l->works[i]);
    exec_release(l->exec);
    free(l);
}

/* Makes one launch: nodes that depend on the launch are armed now. */
static struct work *launch_new_locked(struct exec *e) {
    struct launch *l = malloc(sizeof *l + e->graph->count * sizeof l->works[0]);
    if (l == NULL)
        abort();
    atomic_fetch_add(&e->references, 1);
    *l = (struct launch){.exec = e};
    for (size_t i = 0; i < e->graph->count; i++) {
        struct work *node = e->graph->nodes[i];
        struct work *w = node->arm != NULL ? node->arm(node->arg) : work_keep(node);
        if (w != NULL)
            l->works[l->count++] = w;
    }
    struct work *w = work_new(launch_run, launch_drop, l);
    w->always = true;
    return w;
}

/* Launched on a stream that captures, a graph becomes part of the graph that is recorded. */
static CUresult nest_locked(struct stream *s, struct exec *e) {
    for (size_t i = 0; i < e->graph->count; i++) {
        struct work *w = work_keep(e->graph->nodes[i]);
        CUresult result = capture_add_locked(s, w);
        if (result != CUDA_SUCCESS) {
            work_release(w);
            return result;
        }
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (!handle_live(EXEC, exec))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = stream_resolve(&stream);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&capture_lock);
    if (stream->capture != NULL)
        result = nest_locked(stream, exec);
    else
        stream_push(stream, launch_new_locked(exec));
    pthread_mutex_unlock(&capture_lock);
    return result;
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (!handle_remove(EXEC, exec))
        return CUDA_ERROR_INVALID_VALUE;
    exec_release(exec);
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (!handle_remove(GRAPH, graph))
        return CUDA_ERROR_INVALID_VALUE;
    graph_free(graph);
    return CUDA_SUCCESS;
}
