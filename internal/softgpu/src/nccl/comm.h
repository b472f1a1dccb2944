/* What the files of the software NCCL know of each other. */
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

/* Ends an entry point that SOFTGPU_FAIL names. */
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

/* shared.c: memory that the ranks of a communicator share. A flag counts
 * up; who raises it says that something has happened, who needs that waits for a number. */
struct flag {
    _Atomic uint32_t value, waiters;
};

struct place { /* of one rank */
    struct flag control, arrived, swept, doorbell;
    char slots[2][SLOT_BYTES];
} __attribute__((aligned(4096)));

struct channel { /* from one rank to another */
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
int number_in_proc(void); /* of this process */
void flag_raise(struct flag *f);
bool kernels_are_deaf(void); /* whether those over windows do not hear of aborts, as NCCL's */
extern _Thread_local bool deaf; /* while set, this thread's waits do not look for an abort */
bool flag_await(struct comm *c, struct flag *f, uint32_t number);

/* comm.c. States: connecting (init has not ended), ready, destroying; aborted is a flag next to
 * them, since it ends waits in each. */
struct comm {
    struct comm *next; /* in the list of all; guarded by its lock */
    int rank, nranks, device;
    bool blocking, several_nodes, symmetric, masked;
    struct shared *shared;
    size_t shared_bytes;
    ncclUniqueId id;
    _Atomic int aborted, state; /* state is a ncclResult_t, as ncclCommGetAsyncError tells */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int users, pending, persistent; /* host calls, queued kernels, kernels in graphs; under lock */
    bool finalized, destroying;     /* under lock */
    double factors[MAX_FACTORS];    /* of created reductions, 0 where there is none; under lock */
    uint64_t tickets, serving;      /* order of kernels that are no part of a graph; under lock */
    pthread_mutex_t turn;           /* held by the kernel that runs */
    uint32_t exchanges;             /* host exchanges so far; one host call at a time */
    uint32_t steps, sweeps;         /* of kernels so far; guarded by turn */
    bool connected;                 /* the ring of the plain path */
    bool sends[MAX_RANKS], receives[MAX_RANKS];
    struct window *windows, **windows_end; /* from the oldest to the newest; under lock */
    struct registration *registrations; /* under lock */
    /* For kernels in graphs; used by one host call at a time. */
    CUevent order; /* NULL until the first one */
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

/* plain.c, windowed.c, pair.c: what kernels do. */
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
    int root; /* or the peer */
    CUstream stream;
    struct window *send_window, *recv_window; /* on the window path; each holds a reference */
    size_t send_offset, recv_offset;
};
bool plain_reads_within(const struct comm *c, const struct call *call);
bool plain_run(struct comm *c, const struct call *call);
bool windowed_run(struct comm *c, const struct call *call, int device);
bool pairs_run(struct comm *c, const struct call *calls);

/* call.c, kernel.c: from a call to a kernel on a stream. */
void call_plan(struct comm *c, struct call *call);
void call_free(struct call *call);
ncclResult_t calls_connect(struct comm *c, const struct call *calls);
ncclResult_t calls_launch(struct comm *c, struct call *calls);

void await_ticket(struct comm *c, uint64_t ticket);

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
