/* Memory that the ranks of a communicator share: a memfd of the process that created the unique id.
 * The other processes open it through /proc. It has no name in a file system, so nothing remains
 * when processes die. As with NCCL, the creator must live until all ranks have opened it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "comm.h"

struct name { /* contents of a unique id */
    char magic[8];
    int pid, fd;
    uint64_t token;
};

struct shared { /* first page; places, channels and stages follow */
    _Atomic uint64_t token;
    _Atomic int nranks;
};

enum { HEADER_BYTES = 4096 };

struct kept { /* memfd whose unique id not all ranks have opened */
    struct kept *next;
    struct name name;
};

static struct kept *keeping;
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t shared_size(int nranks) {
    size_t n = (size_t)nranks;
    return HEADER_BYTES + n * sizeof(struct place) + n * n * sizeof(struct channel) +
           n * 2 * STAGE_BYTES;
}

static char *after(const struct comm *c, size_t bytes) {
    return (char *)c->shared + HEADER_BYTES + bytes;
}

struct place *shared_place(const struct comm *c, int rank) {
    return (struct place *)(void *)after(c, (size_t)rank * sizeof(struct place));
}

struct channel *shared_channel(const struct comm *c, int from, int to) {
    size_t n = (size_t)c->nranks, number = (size_t)from * n + (size_t)to;
    size_t at = n * sizeof(struct place) + number * sizeof(struct channel);
    return (struct channel *)(void *)after(c, at);
}

char *shared_stage(const struct comm *c, int rank, unsigned half) {
    size_t n = (size_t)c->nranks, number = 2 * (size_t)rank + half % 2;
    return after(c, n * sizeof(struct place) + n * n * sizeof(struct channel) +
                        number * STAGE_BYTES);
}

static bool write_token(int fd, uint64_t token) {
    return ftruncate(fd, HEADER_BYTES) == 0 && pwrite(fd, &token, sizeof token, 0) == sizeof token;
}

/* Returns the number of this process in /proc. In a PID namespace /proc may be that of an outer
 * namespace, where the process has another number. */
int number_in_proc(void) {
    char text[16];
    ssize_t n = readlink("/proc/self", text, sizeof text - 1);
    text[n < 0 ? 0 : n] = 0;
    return atoi(text);
}

ncclResult_t shared_name(ncclUniqueId *id) {
    struct kept *k = calloc(1, sizeof *k);
    int fd = memfd_create("softgpu-comm", MFD_CLOEXEC);
    if (k == NULL || fd < 0 || getrandom(&k->name.token, sizeof k->name.token, 0) < 0 ||
        !write_token(fd, k->name.token)) {
        if (fd >= 0)
            close(fd);
        free(k);
        return report(ncclSystemError, "making the shared memory: %s", strerror(errno));
    }
    memcpy(k->name.magic, "softgpu", 8);
    k->name.pid = number_in_proc();
    k->name.fd = fd;
    memset(id, 0, sizeof *id);
    memcpy(id->internal, &k->name, sizeof k->name);
    pthread_mutex_lock(&kept_lock);
    k->next = keeping;
    keeping = k;
    pthread_mutex_unlock(&kept_lock);
    return ncclSuccess;
}

/* Closes the memfd of a unique id that all ranks have opened, if this process created it. */
void shared_forget(const ncclUniqueId *id) {
    pthread_mutex_lock(&kept_lock);
    struct kept **at = &keeping;
    while (*at != NULL && memcmp(&(*at)->name, id->internal, sizeof(struct name)) != 0)
        at = &(*at)->next;
    struct kept *found = *at;
    if (found != NULL) {
        *at = found->next;
        close(found->name.fd);
        free(found);
    }
    pthread_mutex_unlock(&kept_lock);
}

static ncclResult_t map(struct comm *c, int fd, uint64_t token) {
    size_t bytes = shared_size(c->nranks);
    uint64_t found = 0;
    if (pread(fd, &found, sizeof found, 0) != sizeof found || found != token)
        return report(ncclSystemError, "the unique id is of no communicator");
    void *at = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) == 0)
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return report(ncclSystemError, "mapping the shared memory: %s", strerror(errno));
    c->shared = at;
    c->shared_bytes = bytes;
    int expected = 0;
    if (!atomic_compare_exchange_strong(&c->shared->nranks, &expected, c->nranks) &&
        expected != c->nranks)
        return report(ncclInternalError, "mismatch in rank count: %d and %d", expected, c->nranks);
    return ncclSuccess;
}

ncclResult_t shared_open(struct comm *c, const ncclUniqueId *id) {
    struct name name;
    char path[64];
    memcpy(&name, id->internal, sizeof name);
    if (memcmp(name.magic, "softgpu", 8) != 0)
        return report(ncclInvalidArgument, "this is no unique id");
    snprintf(path, sizeof path, "/proc/%d/fd/%d", name.pid, name.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return report(ncclSystemError, "opening %s: %s", path, strerror(errno));
    ncclResult_t result = map(c, fd, name.token);
    close(fd);
    return result;
}

void shared_close(struct comm *c) {
    if (c->shared != NULL)
        munmap(c->shared, c->shared_bytes);
    c->shared = NULL;
}

static long futex(_Atomic uint32_t *word, int operation, uint32_t value, struct timespec *limit) {
    return syscall(SYS_futex, word, operation, value, limit, NULL, 0);
}

void flag_raise(struct flag *f) {
    atomic_fetch_add(&f->value, 1);
    if (atomic_load(&f->waiters) > 0)
        futex(&f->value, FUTEX_WAKE, INT32_MAX, NULL);
}

static bool reached(struct flag *f, uint32_t number, uint32_t *value) {
    *value = atomic_load(&f->value);
    return (int32_t)(*value - number) >= 0;
}

_Thread_local bool deaf;

static bool hears_abort(const struct comm *c) { return !deaf && atomic_load(&c->aborted) != 0; }

/* Waits without a timeout until a flag reaches a number. Returns false if the communicator was
 * aborted on this rank. Aborts are checked every few milliseconds, unless the thread is deaf. */
bool flag_await(struct comm *c, struct flag *f, uint32_t number) {
    uint32_t value;
    for (int spins = 0; spins < 64; spins++)
        if (reached(f, number, &value))
            return !hears_abort(c);
    atomic_fetch_add(&f->waiters, 1);
    while (!reached(f, number, &value) && !hears_abort(c)) {
        struct timespec limit = {.tv_nsec = 5000000};
        futex(&f->value, FUTEX_WAIT, value, &limit);
    }
    atomic_fetch_sub(&f->waiters, 1);
    return !hears_abort(c);
}
