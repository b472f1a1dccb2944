/* User objects: a destructor that runs when the last reference is released. The program and graphs
 * hold references. An instantiated graph holds the objects of its graph, as does a node that
 * launches it. A running launch holds the objects of its instantiated graph. The destructor runs on
 * a separate thread, for which no call waits, and must not call CUDA. Destructors run one after the
 * other. */
#include <stdlib.h>

#include "driver.h"

struct object {
    _Atomic long references;
    CUhostFn destroy;
    void *arg;
    unsigned long number; /* in the order of destructors */
};

static pthread_mutex_t turn_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn_changed = PTHREAD_COND_INITIALIZER;
static unsigned long turn; /* number of the object whose destructor may run */
static _Atomic unsigned long released;

static void *destroy_object(void *arg) {
    struct object *o = arg;
    in_host_function = true;
    pthread_mutex_lock(&turn_lock);
    while (turn != o->number)
        pthread_cond_wait(&turn_changed, &turn_lock);
    pthread_mutex_unlock(&turn_lock);
    o->destroy(o->arg);
    free(o);
    pthread_mutex_lock(&turn_lock);
    turn++;
    pthread_cond_broadcast(&turn_changed);
    pthread_mutex_unlock(&turn_lock);
    return NULL;
}

static void object_release(struct object *o, unsigned count) {
    if (atomic_fetch_sub(&o->references, (long)count) > (long)count)
        return;
    handle_remove(OBJECT, o);
    o->number = atomic_fetch_add(&released, 1);
    if (thread_start(destroy_object, o) != 0)
        abort();
}

/* A graph's references to one object. */
struct holding {
    struct holding *next;
    struct object *object;
    unsigned count;
};

static pthread_mutex_t holding_lock = PTHREAD_MUTEX_INITIALIZER;

static void holding_add_locked(struct graph *g, struct object *o, unsigned count) {
    struct holding *h = malloc(sizeof *h);
    if (h == NULL)
        abort();
    *h = (struct holding){.next = g->holdings, .object = o, .count = count};
    g->holdings = h;
}

void graph_hold_alike(struct graph *to, const struct graph *from) {
    pthread_mutex_lock(&holding_lock);
    for (const struct holding *h = from->holdings; h != NULL; h = h->next) {
        atomic_fetch_add(&h->object->references, (long)h->count);
        holding_add_locked(to, h->object, h->count);
    }
    pthread_mutex_unlock(&holding_lock);
}

void graph_hold_nothing(struct graph *g) {
    while (g->holdings != NULL) {
        struct holding *h = g->holdings;
        g->holdings = h->next;
        object_release(h->object, h->count);
        free(h);
    }
}

CUresult cuUserObjectCreate(CUuserObject *object, void *arg, CUhostFn destroy, unsigned count,
                            unsigned flags) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (object == NULL || destroy == NULL || count == 0 ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    struct object *o = malloc(sizeof *o);
    if (o == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *o = (struct object){.destroy = destroy, .arg = arg};
    atomic_init(&o->references, (long)count);
    handle_add(OBJECT, o);
    *object = o;
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned count) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (count == 0 || !handle_live(OBJECT, object))
        return CUDA_ERROR_INVALID_VALUE;
    atomic_fetch_add(&object->references, (long)count);
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned count) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (count == 0 || !handle_live(OBJECT, object))
        return CUDA_ERROR_INVALID_VALUE;
    object_release(object, count);
    return CUDA_SUCCESS;
}

/* Retains an object for a graph. The graph may belong to an active capture. */
CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count,
                                 unsigned flags) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (count == 0 || flags > CU_GRAPH_USER_OBJECT_MOVE || !handle_live(OBJECT, object) ||
        !handle_live(GRAPH, graph))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags != CU_GRAPH_USER_OBJECT_MOVE)
        atomic_fetch_add(&object->references, (long)count);
    pthread_mutex_lock(&holding_lock);
    holding_add_locked(graph, object, count);
    pthread_mutex_unlock(&holding_lock);
    return CUDA_SUCCESS;
}

/* Releases references that one call has retained. */
CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned count) {
    ENTER(CUDA_ERROR_UNKNOWN);
    if (!handle_live(OBJECT, object) || !handle_live(GRAPH, graph))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&holding_lock);
    struct holding **at = &graph->holdings;
    while (*at != NULL && ((*at)->object != object || (*at)->count != count))
        at = &(*at)->next;
    struct holding *found = *at;
    if (found != NULL)
        *at = found->next;
    pthread_mutex_unlock(&holding_lock);
    if (found == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    object_release(object, count);
    free(found);
    return CUDA_SUCCESS;
}
