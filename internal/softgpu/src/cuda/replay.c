/* Launches of graphs. Each node starts when the nodes that it depends on are complete. The stream's
 * thread runs one node after the other. Helper threads join if several nodes are ready. */
#include <stdlib.h>

#include "driver.h"

struct exec {
    _Atomic int references; /* held by the handle, by launches and by graphs */
    struct graph *graph;
    /* Launches of one exec run one after the other, in the order of the calls. */
    unsigned long long made; /* number of launches created; guarded by capture_lock */
    unsigned long long over; /* number of launches ended; guarded by turn */
    pthread_mutex_t turn;
    pthread_cond_t next;
};

struct launch {
    struct exec *exec;
    unsigned long long number; /* position among the launches of the exec */
    int device;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    size_t first, last; /* bounds of the queue in ready; guarded by lock, like all fields below */
    size_t done, helpers;
    struct work **works; /* indexed by node; NULL if the node does nothing */
    size_t *waits;       /* number of nodes that each node still waits for */
    size_t *ready;
};

static void exec_release(void *arg) {
    struct exec *e = arg;
    if (atomic_fetch_sub(&e->references, 1) > 1)
        return;
    graph_free(e->graph);
    pthread_mutex_destroy(&e->turn);
    pthread_cond_destroy(&e->next);
    free(e);
}

/* Copies a graph. Nodes keep their numbers. */
static struct graph *copy_locked(const struct graph *from) {
    struct graph *to = graph_new();
    for (size_t i = 0; i < from->count; i++)
        graph_add(to, work_keep(from->nodes[i]->work), NULL, 0);
    for (size_t i = 0; i < from->count; i++)
        for (size_t k = 0; k < from->nodes[i]->count; k++)
            node_depend(to->nodes[i], to->nodes[from->nodes[i]->before[k]->number]);
    graph_hold_alike(to, from);
    return to;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    ENTER(CUDA_ERROR_OUT_OF_MEMORY);
    (void)flags;
    if (exec == NULL || !handle_live(GRAPH, graph) || graph->capturing)
        return CUDA_ERROR_INVALID_VALUE;
    struct exec *e = calloc(1, sizeof *e);
    if (e == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_init(&e->references, 1);
    pthread_mutex_init(&e->turn, NULL);
    pthread_cond_init(&e->next, NULL);
    pthread_mutex_lock(&capture_lock);
    e->graph = copy_locked(graph);
    pthread_mutex_unlock(&capture_lock);
    handle_add(EXEC, e);
    *exec = e;
    return CUDA_SUCCESS;
}

/* Records that a node is complete. Nodes that depend on it may become ready. */
static void finish_locked(struct launch *l, const struct node *done) {
    for (size_t i = 0; i < done->followers; i++)
        if (--l->waits[done->after[i]->number] == 0)
            l->ready[l->last++] = done->after[i]->number;
    l->done++;
    pthread_cond_broadcast(&l->moved);
}

static void *help(void *arg);

/* Runs nodes while any are ready. */
static void take_part_locked(struct launch *l) {
    while (l->first < l->last) {
        size_t i = l->ready[l->first++];
        if (l->first < l->last && thread_start(help, l) == 0)
            l->helpers++;
        pthread_mutex_unlock(&l->lock);
        if (l->works[i] != NULL)
            work_run(l->works[i], l->device);
        pthread_mutex_lock(&l->lock);
        finish_locked(l, l->exec->graph->nodes[i]);
    }
}

static void *help(void *arg) {
    struct launch *l = arg;
    pthread_mutex_lock(&l->lock);
    take_part_locked(l);
    l->helpers--;
    pthread_cond_broadcast(&l->moved);
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static void launch_run(void *arg, int device) {
    struct launch *l = arg;
    struct exec *e = l->exec;
    const struct graph *g = e->graph;
    pthread_mutex_lock(&e->turn);
    while (e->over != l->number)
        pthread_cond_wait(&e->next, &e->turn);
    pthread_mutex_unlock(&e->turn);
    pthread_mutex_lock(&l->lock);
    l->device = device;
    for (size_t i = 0; i < g->count; i++)
        if ((l->waits[i] = g->nodes[i]->count) == 0)
            l->ready[l->last++] = i;
    for (take_part_locked(l); l->done < g->count || l->helpers > 0; take_part_locked(l))
        pthread_cond_wait(&l->moved, &l->lock);
    pthread_mutex_unlock(&l->lock);
    pthread_mutex_lock(&e->turn);
    e->over++;
    pthread_cond_broadcast(&e->next);
    pthread_mutex_unlock(&e->turn);
}

static void launch_drop(void *arg) {
    struct launch *l = arg;
    for (size_t i = 0; i < l->exec->graph->count; i++)
        if (l->works[i] != NULL)
            work_release(l->works[i]);
    exec_release(l->exec);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->moved);
    free(l->works);
    free(l->waits);
    free(l->ready);
    free(l);
}

static void *array(size_t count, size_t each) {
    void *a = calloc(count + 1, each);
    if (a == NULL)
        abort();
    return a;
}

/* Creates one launch. It calls arm of the nodes that have it. */
static struct work *launch_new_locked(void *arg) {
    struct exec *e = arg;
    size_t count = e->graph->count;
    struct launch *l = array(1, sizeof *l);
    atomic_fetch_add(&e->references, 1);
    l->exec = e;
    l->number = e->made++;
    l->works = array(count, sizeof *l->works);
    l->waits = array(count, sizeof *l->waits);
    l->ready = array(count, sizeof *l->ready);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->moved, NULL);
    for (size_t i = 0; i < count; i++) {
        struct work *node = e->graph->nodes[i]->work;
        l->works[i] = node->arm != NULL ? node->arm(node->arg) : work_keep(node);
    }
    struct work *w = work_new(launch_run, launch_drop, l);
    w->always = true;
    return w;
}

/* Adds a graph to the graph of a capture, for a launch on a stream that is captured. */
static CUresult nest_locked(struct stream *s, struct exec *e) {
    atomic_fetch_add(&e->references, 1);
    struct work *w = work_new(NULL, exec_release, e);
    w->arm = launch_new_locked;
    CUresult result = capture_add_locked(s, w);
    if (result != CUDA_SUCCESS)
        work_release(w);
    return result;
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
