/* Declarations that the files of the software NCCL share. */
#ifndef SOFTGPU_COMM_H
#define SOFTGPU_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "../abi/nccl.h"
#include "../abi/softgpu.h"

enum {
    MAX_RANKS = 64,
    MAX_FACTORS = 16,
    STAGE_BYTES = 512 << 10,
    CHANNEL_BYTES = 64 << 10,
    SLOT_BYTES = 128
};

/* Returns an error from an entry point that SOFTGPU_FAIL names. */
#define INJECT()                                                                                   \
    do {                                                                                           \
        int injected_ = softgpu_inject(__func__, ncclUnhandledCudaError);                          \
        if (injected_ != 0)                                                                        \
            return report(injected_, "%s: injected failure", __func__);                            \
    } while (0)

/* report.c */
ncclResult_t report(ncclResult_t code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void log_tuning(const struct comm *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* shared.c: memory that the ranks of a communicator share. A flag is a counter. A rank increments
 * it to signal an event. A rank that needs the event waits for a value. */
struct flag {
    _Atomic uint32_t value, waiters;
};

struct place { /* memory of one rank */
    struct flag control, arrived, swept, doorbell;
    char slots[2][SLOT_BYTES];
} __attribute__((aligned(4096)));

struct channel { /* channel from one rank to another */
    struct flag head, tail, sender, receiver;
    char data[2][CHANNEL_BYTES];
} __attribute__((aligned(4096)));

struct shared;
struct place *shared_place(const struct comm *c, int rank);
struct channel *shared_channel(const struct comm *c, int from, int to);
char *shared_stage(const struct comm *c, int rank, unsigned half);
ncclResult_t shared_name(ncclUniqueId *id);
ncclResult_t shared_open(struct comm *c, const ncclUniqueId *id);
void shared_forget(const ncclUniqueId *id);
void shared_close(struct comm *c);
int number_in_proc(void); /* number of this process */
void flag_raise(struct flag *f);
bool kernels_are_deaf(void); /* whether kernels of the window path ignore aborts, like NCCL's */
extern _Thread_local bool deaf; /* if set, waits of this thread ignore aborts */
bool flag_await(struct comm *c, struct flag *f, uint32_t number);

/* comm.c. The states are connecting (until initialization has ended), ready and destroying. aborted
 * is a separate flag, because it ends waits in each state. */
struct comm {
    struct comm *next; /* in the list of communicators; guarded by the lock of the list */
    int rank, nranks, device;
    bool blocking, several_nodes, symmetric, masked;
    struct shared *shared;
    size_t shared_bytes;
    ncclUniqueId id;
    _Atomic int aborted, state; /* state is the ncclResult_t of ncclCommGetAsyncError */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int users, pending, persistent; /* host calls, queued kernels, kernels in graphs; under lock */
    bool finalized, destroying;     /* under lock */
    bool suspended;                 /* used by one host call at a time */
    double factors[MAX_FACTORS];    /* of created reductions, 0 where there is none; under lock */
    uint64_t tickets, serving;      /* order of kernels outside of graphs; under lock */
    pthread_mutex_t turn;           /* held by the running kernel */
    uint32_t exchanges;             /* number of host exchanges; used by one host call at a time */
    uint32_t steps, sweeps;         /* numbers of steps and sweeps of kernels; guarded by turn */
    bool connected;                 /* whether the ring of the plain path is connected */
    bool sends[MAX_RANKS], receives[MAX_RANKS];
    struct window *windows, **windows_end; /* ordered from the oldest to the newest; under lock */
    struct registration *registrations; /* under lock */
    struct captured *captured;          /* memory of calls in graphs; under lock */
    unsigned groups;                    /* number of groups with calls; under lock */
    /* For kernels in graphs; used by one host call at a time. */
    CUevent order; /* NULL until the first kernel in a graph */
    struct recording *recordings;
};

struct registration {
    struct registration *next;
};

struct comm *comm_enter(ncclComm_t comm);
void comm_leave(struct comm *c);
void comm_keep(struct comm *c);
ncclResult_t comm_connect(struct comm *c);
void comm_abandon(struct comm *c);
bool comm_exchange(struct comm *c, const void *mine, size_t bytes, void *all);
ncclResult_t comm_ready(const struct comm *c);
void comm_count(struct comm *c, int *counter, int change);
int nccl_version(void);

/* reduce.c */
size_t type_bytes(ncclDataType_t type);
void reduce(void *dst, const void *const *sources, int n, size_t count, ncclDataType_t type,
            ncclRedOp_t op);
void scale(void *elements, size_t count, ncclDataType_t type, double factor);
double first_of(const void *elements, ncclDataType_t type);

/* factor.c */
struct call;
void factor_resolve(struct comm *c, struct call *call);

/* window.c */
ncclResult_t window_register(struct comm *c, void *buffer, size_t bytes, int flags,
                             struct window **out);
struct window *window_find(struct comm *c, const void *address, size_t *offset);
void window_release(struct window *w);
void window_keep(struct window *w);
bool window_live(const struct window *w);
bool window_covers(const struct window *w, size_t offset, size_t bytes);
char *window_at(const struct window *w, int rank, size_t offset);
void windows_close(struct comm *c);

/* plain.c, windowed.c, pair.c: the data movement of kernels. */
enum operation {
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    BROADCAST,
    REDUCE,
    ALL_TO_ALL,
    SEND,
    RECV
};
struct call {
    struct call *next;
    enum operation operation;
    const char *send;
    char *recv;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    double factor; /* of this rank's elements, or 0 */
    int root; /* of a collective; the peer of a send or receive */
    CUstream stream;
    struct window *send_window, *recv_window; /* on the window path; each holds a reference */
    size_t send_offset, recv_offset;
};
bool plain_reads_within(const struct comm *c, const struct call *call);
bool plain_run(struct comm *c, const struct call *call);
bool windowed_run(struct comm *c, const struct call *call, int device);
bool pairs_run(struct comm *c, const struct call *calls);

/* call.c, kernel.c: turn calls into kernels on a stream. */
void call_plan(struct comm *c, struct call *call);
void call_free(struct call *call);
ncclResult_t calls_connect(struct comm *c, const struct call *calls);
ncclResult_t calls_launch(struct comm *c, struct call *calls);

void await_ticket(struct comm *c, uint64_t ticket);

/* captured.c */
struct captured *captured_keep(struct comm *c, const void *buffer);
void captured_drop(struct comm *c, struct captured *m);
bool captured_is_stale(const struct captured *m, const void *buffer);
void captured_group_ended(struct comm *c);
void captured_close(struct comm *c);

/* order.c */
CUresult order_enter(struct comm *c, CUstream stream, bool captured);
CUresult order_leave(struct comm *c, CUstream stream, bool captured);
void order_close(struct comm *c);

/* group.c */
struct task {
    struct task *next;
    struct comm *comm;
    enum { CONNECT, REGISTER, CALL } kind;
    struct call *call;
    void *buffer;
    size_t bytes;
    int flags;
    struct window **window;
    struct comm **created;
};
ncclResult_t group_add(struct task task);
ncclResult_t group_note(ncclResult_t result);

#endif
