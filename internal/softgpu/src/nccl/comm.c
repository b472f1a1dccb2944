/* Communicators. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm.h"

static struct comm *comms;
static pthread_mutex_t comms_lock = PTHREAD_MUTEX_INITIALIZER;

int nccl_version(void) {
    const char *text = getenv("SOFTGPU_NCCL");
    return text != NULL && *text != '\0' ? atoi(text) : 22809;
}

ncclResult_t ncclGetVersion(int *version) {
    INJECT();
    if (version == NULL)
        return report(ncclInvalidArgument, "ncclGetVersion: no place for the version");
    *version = nccl_version();
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    INJECT();
    if (id == NULL)
        return report(ncclInvalidArgument, "ncclGetUniqueId: no place for the id");
    return shared_name(id);
}

static struct comm *find_locked(const struct comm *comm) {
    struct comm *c = comms;
    while (c != NULL && c != comm)
        c = c->next;
    return c;
}

/* Finds a communicator that is in use, and keeps it until comm_leave. */
struct comm *comm_enter(ncclComm_t comm) {
    pthread_mutex_lock(&comms_lock);
    struct comm *c = find_locked(comm);
    if (c != NULL) {
        pthread_mutex_lock(&c->lock);
        bool ending = c->destroying;
        if (!ending)
            c->users++;
        pthread_mutex_unlock(&c->lock);
        c = ending ? NULL : c;
    }
    pthread_mutex_unlock(&comms_lock);
    return c;
}

void comm_count(struct comm *c, int *counter, int change) {
    pthread_mutex_lock(&c->lock);
    *counter += change;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

void comm_keep(struct comm *c) { comm_count(c, &c->users, 1); }

void comm_leave(struct comm *c) { comm_count(c, &c->users, -1); }

/* Returns an error if the previous call of a nonblocking communicator has not ended. */
ncclResult_t comm_ready(const struct comm *c) {
    ncclResult_t state = (ncclResult_t)atomic_load(&c->state);
    if (state == ncclInProgress)
        return report(ncclInvalidArgument, "Attempt to use communicator before the previous "
                                           "operation returned ncclSuccess");
    return state;
}

/* Exchanges data between all ranks. Returns false if this rank has aborted. A rank raises its flag
 * for the next exchange only after it has read all slots, so two sets of slots suffice. */
bool comm_exchange(struct comm *c, const void *mine, size_t bytes, void *all) {
    struct place *own = shared_place(c, c->rank);
    uint32_t number = ++c->exchanges;
    memcpy(own->slots[number % 2], mine, bytes);
    flag_raise(&own->control);
    for (int r = 0; r < c->nranks; r++) {
        struct place *p = shared_place(c, r);
        if (!flag_await(c, &p->control, number))
            return false;
        memcpy((char *)all + (size_t)r * bytes, p->slots[number % 2], bytes);
    }
    return true;
}

struct greeting {
    uint64_t host;
    int device, version;
};

static uint64_t host_hash(void) {
    char name[256] = "";
    const char *id = getenv("NCCL_HOSTID");
    if (id == NULL || *id == '\0')
        gethostname(name, sizeof name - 1);
    uint64_t hash = 14695981039346656037u;
    for (const char *at = *name != '\0' ? name : id; at != NULL && *at != '\0'; at++)
        hash = (hash ^ (unsigned char)*at) * 1099511628211u;
    return hash;
}

static bool switched_off(const char *name) {
    const char *text = getenv(name);
    return text != NULL && strcmp(text, "0") == 0;
}

/* Decides whether windows are available, and whether they are useful. */
static void judge(struct comm *c) {
    const char *windows = getenv("SOFTGPU_WINDOWS");
    bool masked = windows != NULL && strcmp(windows, "masked") == 0;
    bool none = windows != NULL && strcmp(windows, "null") == 0;
    c->masked = masked;
    c->symmetric = !masked && !none && !c->several_nodes && !switched_off("NCCL_WIN_ENABLE") &&
                   !switched_off("NCCL_CUMEM_ENABLE");
}

static ncclResult_t compare(struct comm *c, const struct greeting *all) {
    const char *several = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    bool shareable = several != NULL && strcmp(several, "1") == 0 && nccl_version() >= 23000;
    for (int a = 0; a < c->nranks; a++) {
        c->several_nodes |= all[a].host != all[0].host;
        if (all[a].version != all[0].version)
            return report(ncclInvalidUsage, "ranks 0 and %d have different versions", a);
        for (int b = 0; b < a && !shareable; b++)
            if (all[a].host == all[b].host && all[a].device == all[b].device)
                return report(ncclInvalidUsage, "Duplicate GPU detected : rank %d and rank %d", b,
                              a);
    }
    return ncclSuccess;
}

/* Connects to the other ranks. This is collective. */
ncclResult_t comm_connect(struct comm *c) {
    struct greeting all[MAX_RANKS], own = {host_hash(), softgpu_physical(c->device), 0};
    own.version = nccl_version();
    ncclResult_t result = shared_open(c, &c->id);
    if (result != ncclSuccess)
        return result;
    if (!comm_exchange(c, &own, sizeof own, all))
        return report(ncclInternalError, "ncclCommInitRank: aborted");
    shared_forget(&c->id);
    result = compare(c, all);
    judge(c);
    return result;
}

static bool idle(const struct comm *c) {
    return c->users == 0 && c->pending == 0 && c->persistent == 0;
}

/* Waits until the communicator is unused, and removes it from the list. */
static void retire(struct comm *c) {
    for (bool gone = false; !gone;) {
        pthread_mutex_lock(&c->lock);
        while (!idle(c))
            pthread_cond_wait(&c->changed, &c->lock);
        pthread_mutex_unlock(&c->lock);
        pthread_mutex_lock(&comms_lock);
        pthread_mutex_lock(&c->lock);
        gone = idle(c);
        struct comm **at = &comms;
        while (gone && *at != c)
            at = &(*at)->next;
        if (gone)
            *at = c->next;
        pthread_mutex_unlock(&c->lock);
        pthread_mutex_unlock(&comms_lock);
    }
}

/* Frees a communicator after its last use has ended. */
static void comm_discard(struct comm *c) {
    retire(c);
    windows_close(c);
    captured_close(c);
    order_close(c);
    while (c->registrations != NULL) {
        struct registration *r = c->registrations;
        c->registrations = r->next;
        free(r);
    }
    shared_close(c);
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->turn);
    pthread_cond_destroy(&c->changed);
    free(c);
}

/* Starts to destroy a communicator. Returns false if another thread does so already. */
static bool claim(struct comm *c, bool abort) {
    pthread_mutex_lock(&c->lock);
    bool owner = !c->destroying;
    c->destroying = true;
    if (abort)
        atomic_store(&c->aborted, 1);
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return owner;
}

/* Removes and frees a communicator whose initialization failed. */
void comm_abandon(struct comm *c) {
    bool owner = claim(c, true);
    comm_leave(c);
    if (owner)
        comm_discard(c);
}

static struct comm *comm_new(int nranks, int rank, const ncclUniqueId *id, bool blocking) {
    struct comm *c = calloc(1, sizeof *c);
    if (c == NULL)
        abort();
    c->nranks = nranks;
    c->rank = rank;
    c->id = *id;
    c->blocking = blocking;
    if (cuCtxGetDevice(&c->device) != CUDA_SUCCESS)
        c->device = 0;
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->turn, NULL);
    pthread_cond_init(&c->changed, NULL);
    pthread_mutex_lock(&comms_lock);
    c->next = comms;
    comms = c;
    pthread_mutex_unlock(&comms_lock);
    return c;
}

static ncclResult_t comm_init(ncclComm_t *comm, int nranks, int rank, const ncclUniqueId *id,
                              const ncclConfig_t *config) {
    if (comm == NULL || nranks < 1 || nranks > MAX_RANKS || rank < 0 || rank >= nranks)
        return group_note(report(ncclInvalidArgument, "rank %d of %d", rank, nranks));
    if (config != NULL && config->magic != 0xcafebeef)
        return group_note(report(ncclInvalidArgument, "the configuration was not initialized"));
    *comm = comm_new(nranks, rank, id, config == NULL || config->blocking != 0);
    struct task task = {.comm = *comm, .kind = CONNECT, .created = comm};
    return group_add(task);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int ids,
                                      ncclUniqueId *id, ncclConfig_t *config) {
    INJECT();
    if (ids < 1 || id == NULL)
        return group_note(report(ncclInvalidArgument, "ncclCommInitRankScalable: no unique id"));
    return comm_init(comm, nranks, rank, id, config);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    INJECT();
    return comm_init(comm, nranks, rank, &id, config);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank) {
    INJECT();
    return comm_init(comm, nranks, rank, &id, NULL);
}

/* Waits for this rank's kernels and for the graphs that contain kernels of the communicator. */
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    INJECT();
    struct comm *c = comm_enter(comm);
    if (c == NULL)
        return report(ncclInvalidArgument, "ncclCommFinalize: no communicator");
    ncclResult_t result = comm_ready(c);
    pthread_mutex_lock(&c->lock);
    if (result == ncclSuccess && c->finalized)
        result = ncclInvalidArgument;
    c->finalized = true;
    while (result == ncclSuccess && (c->pending > 0 || c->persistent > 0) && !c->aborted)
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
    comm_leave(c);
    return result;
}

static ncclResult_t set_suspended(ncclComm_t comm, bool suspended, const char *entry) {
    struct comm *c = comm_enter(comm);
    if (c == NULL)
        return report(ncclInvalidArgument, "%s: no communicator", entry);
    ncclResult_t result = comm_ready(c);
    if (result == ncclSuccess && c->suspended == suspended)
        result = report(ncclInvalidUsage, "%s: the state is the same already", entry);
    if (result == ncclSuccess)
        c->suspended = suspended;
    comm_leave(c);
    return result;
}

/* Keeps the memory. Collectives fail until ncclCommResume. */
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags) {
    INJECT();
    if (flags != 1)
        return report(ncclInvalidArgument, "ncclCommSuspend: invalid flags %d", flags);
    return set_suspended(comm, true, __func__);
}

ncclResult_t ncclCommResume(ncclComm_t comm) {
    INJECT();
    return set_suspended(comm, false, __func__);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    INJECT();
    if (comm == NULL)
        return ncclSuccess;
    struct comm *c = comm_enter(comm);
    if (c == NULL)
        return report(ncclInvalidArgument, "ncclCommDestroy: no communicator");
    ncclResult_t result = comm_ready(c);
    if (atomic_load(&c->state) == ncclInProgress) {
        comm_leave(c);
        return result;
    }
    bool owner = claim(c, false);
    comm_leave(c);
    while (owner && getenv("SOFTGPU_ENDLESS") != NULL)
        pause();
    if (owner)
        comm_discard(c);
    return ncclSuccess;
}

/* Stops kernels and host calls that wait. Then it waits for all work of the device, because NCCL
 * frees device memory, and for graphs. With kernels that ignore aborts, it is unknown which calls
 * NCCL blocks. Here it blocks none. If another thread is destroying the communicator, the abort
 * only ends the waits of that thread. */
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    INJECT();
    if (comm == NULL)
        return ncclSuccess;
    pthread_mutex_lock(&comms_lock);
    struct comm *c = find_locked(comm);
    bool owner = c != NULL && claim(c, true);
    pthread_mutex_unlock(&comms_lock);
    if (owner) {
        if (kernels_are_deaf())
            cuCtxSynchronize();
        else
            softgpu_free();
        comm_discard(c);
    }
    return c != NULL ? ncclSuccess : report(ncclInvalidArgument, "ncclCommAbort: no communicator");
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
    struct comm *c = comm_enter(comm);
    if (c == NULL || state == NULL)
        return report(ncclInvalidArgument, "ncclCommGetAsyncError: bad argument");
    int injected = softgpu_inject(__func__, ncclRemoteError);
    *state = injected != 0 ? (ncclResult_t)injected : (ncclResult_t)atomic_load(&c->state);
    comm_leave(c);
    return ncclSuccess;
}
