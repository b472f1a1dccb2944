/* Graphs: works with dependencies. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"

static void *grow(void *array, size_t count, size_t *room, size_t each) {
    if (count < *room)
        return array;
    *room = *room == 0 ? 4 : 2 * *room;
    array = realloc(array, *room * each);
    if (array == NULL)
        abort();
    return array;
}

struct graph *graph_new(void) {
    struct graph *g = calloc(1, sizeof *g);
    if (g == NULL)
        abort();
    return g;
}

/* Appends a node. The graph takes over the reference of the work. */
struct node *graph_add(struct graph *g, struct work *w, struct node *const *before, size_t count) {
    struct node *n = calloc(1, sizeof *n);
    if (n == NULL)
        abort();
    n->work = w;
    n->number = g->count;
    for (size_t i = 0; i < count; i++)
        node_depend(n, before[i]);
    g->nodes = grow(g->nodes, g->count, &g->room, sizeof *g->nodes);
    g->nodes[g->count++] = n;
    return n;
}

void node_depend(struct node *n, struct node *on) {
    n->before = grow(n->before, n->count, &n->room, sizeof *n->before);
    n->before[n->count++] = on;
    on->after = grow(on->after, on->followers, &on->followers_room, sizeof *on->after);
    on->after[on->followers++] = n;
}

/* Removes a node from a list. Returns whether the list contained it. */
static bool take_out(struct node **list, size_t *count, const struct node *n) {
    size_t i = 0;
    while (i < *count && list[i] != n)
        i++;
    if (i == *count)
        return false;
    --*count;
    memmove(list + i, list + i + 1, (*count - i) * sizeof *list);
    return true;
}

static bool search(struct node *n, struct node *of, unsigned long long number) {
    if (n == of)
        return true;
    if (n->seen == number)
        return false;
    n->seen = number;
    for (size_t i = 0; i < n->count; i++)
        if (search(n->before[i], of, number))
            return true;
    return false;
}

/* Reports whether a node equals another one or depends on it. */
bool node_behind(struct node *n, struct node *of) {
    static unsigned long long searches; /* guarded by capture_lock */
    return search(n, of, ++searches);
}

bool node_of(const struct graph *g, const struct node *n) {
    for (size_t i = 0; i < g->count; i++)
        if (g->nodes[i] == n)
            return true;
    return false;
}

void graph_free(struct graph *g) {
    for (size_t i = 0; i < g->count; i++) {
        work_release(g->nodes[i]->work);
        free(g->nodes[i]->before);
        free(g->nodes[i]->after);
        free(g->nodes[i]);
    }
    free(g->nodes);
    graph_hold_nothing(g);
    free(g);
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (count == NULL || !handle_live(GRAPH, graph))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&capture_lock);
    for (size_t i = 0; nodes != NULL && i < *count; i++)
        nodes[i] = i < graph->count ? graph->nodes[i] : NULL;
    if (nodes == NULL || *count > graph->count)
        *count = graph->count;
    pthread_mutex_unlock(&capture_lock);
    return CUDA_SUCCESS;
}

/* The newer version of the function, with data of edges. Edges have no data in this driver. */
CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, void *edges,
                            size_t *count) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (count == NULL || (from == NULL) != (to == NULL) || !handle_live(GRAPH, graph))
        return CUDA_ERROR_INVALID_VALUE;
    size_t found = 0;
    pthread_mutex_lock(&capture_lock);
    for (size_t i = 0; i < graph->count; i++)
        for (size_t k = 0; k < graph->nodes[i]->count; k++, found++)
            if (from != NULL && found < *count) {
                from[found] = graph->nodes[i]->before[k];
                to[found] = graph->nodes[i];
            }
    pthread_mutex_unlock(&capture_lock);
    if (from == NULL || *count > found)
        *count = found;
    if (edges != NULL)
        memset(edges, 0, *count * 8);
    return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) {
    return cuGraphGetEdges_v2(graph, from, to, NULL, count);
}

static CUresult add_event(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                          size_t count, CUevent event, struct work *(*make)(struct event *)) {
    if (node == NULL || (before == NULL && count > 0) || !handle_live(GRAPH, graph) ||
        !handle_live(EVENT, event))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&capture_lock);
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count; i++)
        if (!node_of(graph, before[i]))
            result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *node = graph_add(graph, make(event), before, count);
    pthread_mutex_unlock(&capture_lock);
    return result;
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                   size_t count, CUevent event) {
    ENTER(CUDA_ERROR_OUT_OF_MEMORY);
    return add_event(node, graph, before, count, event, event_record_work);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                 size_t count, CUevent event) {
    ENTER(CUDA_ERROR_OUT_OF_MEMORY);
    return add_event(node, graph, before, count, event, event_wait_work);
}

/* Adds an edge. Edges that exist or would close a cycle are refused. */
static CUresult add_edge(struct node *from, struct node *to) {
    for (size_t i = 0; i < to->count; i++)
        if (to->before[i] == from)
            return CUDA_ERROR_INVALID_VALUE;
    if (node_behind(from, to))
        return CUDA_ERROR_INVALID_VALUE;
    node_depend(to, from);
    return CUDA_SUCCESS;
}

static CUresult remove_edge(struct node *from, struct node *to) {
    if (!take_out(to->before, &to->count, from))
        return CUDA_ERROR_INVALID_VALUE;
    take_out(from->after, &from->followers, to);
    return CUDA_SUCCESS;
}

static CUresult edges_do(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                         const void *edges, size_t count,
                         CUresult (*change)(struct node *, struct node *)) {
    if (edges != NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!handle_live(GRAPH, graph) || (count > 0 && (from == NULL || to == NULL)))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&capture_lock);
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = node_of(graph, from[i]) && node_of(graph, to[i]) ? change(from[i], to[i])
                                                                  : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&capture_lock);
    return result;
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                   const void *edges, size_t count) {
    ENTER(CUDA_ERROR_OUT_OF_MEMORY);
    return edges_do(graph, from, to, edges, count, add_edge);
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                size_t count) {
    return cuGraphAddDependencies_v2(graph, from, to, NULL, count);
}

CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from,
                                      const CUgraphNode *to, const void *edges, size_t count) {
    ENTER(CUDA_ERROR_UNKNOWN);
    return edges_do(graph, from, to, edges, count, remove_edge);
}

CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                   size_t count) {
    return cuGraphRemoveDependencies_v2(graph, from, to, NULL, count);
}

/* Destroys a graph. The graph of an active capture belongs to the capture. */
CUresult cuGraphDestroy(CUgraph graph) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (!handle_live(GRAPH, graph) || graph->capturing || !handle_remove(GRAPH, graph))
        return CUDA_ERROR_INVALID_VALUE;
    graph_free(graph);
    return CUDA_SUCCESS;
}
