/* Declarations that the files of the software driver share. */
#ifndef SOFTGPU_DRIVER_H
#define SOFTGPU_DRIVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "../abi/softgpu.h"

enum { MAX_DEVICES = 64, GRANULARITY = 2 << 20 };

/* Limits of launches: the threads of a block, sizes, and shared memory in bytes. */
enum {
    MAX_THREADS = 1024,
    MAX_BLOCK_Z = 64,
    MAX_GRID_X = 0x7fffffff,
    MAX_GRID_YZ = 65535,
    MAX_SHARED = 48 << 10
};

/* Every entry point begins with ENTER or ASK. They check the state of the driver, of this thread
 * and of its device. ENTER also waits while another thread frees memory. ASK does not wait. */
#define ENTER(otherwise)                                                                           \
    do {                                                                                           \
        ASK(otherwise);                                                                            \
        context_await_frees();                                                                     \
    } while (0)
#define ASK(otherwise)                                                                             \
    do {                                                                                           \
        CUresult refused_ = driver_enter(__func__, otherwise);                                     \
        if (refused_ != CUDA_SUCCESS)                                                              \
            return refused_;                                                                       \
    } while (0)

CUresult driver_enter(const char *entry, CUresult otherwise);
extern _Thread_local bool in_host_function;
size_t environment_size(const char *name, size_t otherwise);

/* context.c */
struct context {
    int device;
    int retained;
    _Atomic int error; /* a CUresult; never reset while the context exists */
    struct stream *implicit; /* the default stream; guarded by lock */
    long pending;            /* queued works that are not complete; guarded by lock */
    long running;            /* number of running kernels; guarded by lock */
    _Atomic int freeing;     /* number of calls that free memory; written under lock */
    bool *loaded;            /* indexed by kernel; guarded by lock */
    unsigned long *runs;     /* number of starts of each kernel; guarded by lock */
    pthread_mutex_t lock;
    pthread_cond_t idle, still, freed;
};
extern _Thread_local struct context *current;
void context_add(int device, long works);
void context_drain(int device);
void context_await_frees(void);
bool device_valid(CUdevice device);
int device_count(void);
struct context *context_of(int device);

/* handle.c: checks whether pointers are live objects. */
enum kind { ALLOCATION, STREAM, EVENT, GRAPH, EXEC, MODULE, OBJECT };
void handle_add(enum kind kind, const void *object);
bool handle_live(enum kind kind, const void *object);
bool handle_remove(enum kind kind, const void *object);

/* memory.c */
struct allocation {
    int references; /* held by handles and mappings; guarded by memory_lock */
    int fd;
    int device; /* -1 if imported */
    size_t bytes;
    CUmemAllocationProp prop;
};
extern pthread_mutex_t memory_lock;
void allocation_release_locked(struct allocation *a);
bool memory_take(int device, size_t bytes);
void memory_give(int device, size_t bytes);
void memory_usage(int device, size_t *unused, size_t *total);

/* mapping.c */
struct range {
    uintptr_t base;
    size_t bytes;
};
struct mapping {
    struct range at;
    struct allocation *allocation;
    uint64_t access; /* one bit per device */
};
struct mapping *mapping_find_locked(uintptr_t address);
enum place { ELSEWHERE, MAPPED, FORBIDDEN };
enum place mapping_place(uintptr_t address, size_t bytes, int device);

/* plain.c: memory without handles. */
enum plain { NOT_PLAIN, PLAIN_DEVICE, PLAIN_PINNED, PLAIN_REGISTERED };
CUresult plain_new(enum plain kind, int device, size_t bytes, uintptr_t *base);
bool plain_free(uintptr_t base);
enum plain plain_kind(uintptr_t address, uintptr_t *base, size_t *bytes);

/* work.c: a unit of work, shared by queues and graphs. */
struct work {
    _Atomic int references;
    bool always; /* run even on a failed device, because other works wait for it */
    void (*run)(void *arg, int device);
    void (*drop)(void *arg);
    /* If arm is set, each launch of a graph calls it and runs the work that it returns. */
    struct work *(*arm)(void *arg);
    void *arg;
};
struct work *work_new(void (*run)(void *, int), void (*drop)(void *), void *arg);
struct work *work_keep(struct work *w);
void work_release(struct work *w);
void work_run(struct work *w, int device);

/* stream.c */
struct stream {
    int device;
    pthread_mutex_t lock;
    pthread_cond_t more, moved;
    struct entry *head, **tail;
    unsigned long long pushed, done; /* number of works so far */
    bool closing;
    struct capture *capture; /* capture and lane are guarded by capture_lock */
    int lane;
};
void stream_check(CUstream stream);
CUresult stream_resolve(CUstream *stream);
CUresult stream_queue(struct stream *s, struct work *w);
void stream_push(struct stream *s, struct work *w);
CUresult stream_drain(struct stream *s);

/* graph.c: nodes with dependencies. capture_lock guards graphs of active captures. */
struct node {
    size_t number; /* index in its graph */
    struct work *work;
    struct node **before; /* nodes that this node depends on */
    size_t count, room;
    struct node **after; /* nodes that depend on this node */
    size_t followers, followers_room;
    unsigned long long seen; /* number of the last search that visited this node */
};
struct graph {
    bool capturing;
    struct node **nodes;
    size_t count, room;
    struct holding *holdings; /* references to user objects */
};
struct graph *graph_new(void);
struct node *graph_add(struct graph *g, struct work *w, struct node *const *before, size_t count);
void graph_free(struct graph *g);
void node_depend(struct node *n, struct node *on);
bool node_behind(struct node *n, struct node *of);
bool node_of(const struct graph *g, const struct node *n);

/* capture.c */
enum { MAX_LANES = 16, MAX_TIPS = 64 };
struct frontier {
    unsigned long long capture;
    size_t count;
    struct node *tips[MAX_TIPS];
};
extern pthread_mutex_t capture_lock;
bool capture_forbids(void);
CUresult capture_add_locked(struct stream *s, struct work *w);
CUresult capture_wait_locked(struct stream *s, const struct frontier *reached);
void capture_reached_locked(const struct stream *s, struct frontier *reached);
void capture_spoil_locked(unsigned long long id);
void capture_leave(struct stream *s);

/* event.c: works of graph nodes. They hold a reference of the event. */
struct work *event_record_work(struct event *e);
struct work *event_wait_work(struct event *e);

/* stream.c */
int thread_start(void *(*run)(void *), void *arg);

/* object.c: user objects of graphs. */
void graph_hold_alike(struct graph *to, const struct graph *from);
void graph_hold_nothing(struct graph *g);

#endif
