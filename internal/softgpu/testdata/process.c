/* Ranks that are processes. The first one creates the unique id and starts the others with it. With
 * "kill" the second one is killed in a collective, and the first one hangs until it aborts. */
#include <signal.h>
#include <sys/wait.h>

#include "scene.h"

static void write_id(const ncclUniqueId *id, char *text) {
    for (int i = 0; i < 128; i++)
        sprintf(text + 2 * i, "%02x", (unsigned char)id->internal[i]);
}

static void read_id(ncclUniqueId *id, const char *text) {
    for (int i = 0; i < 128; i++) {
        unsigned byte;
        CHECK(sscanf(text + 2 * i, "%2x", &byte) == 1);
        id->internal[i] = (char)byte;
    }
}

static void sum(struct rank *r, CUdeviceptr at) {
    int n = 5000;
    float *send = (float *)(uintptr_t)at, *recv = send + MIB / 4;
    for (int i = 0; i < n; i++)
        send[i] = (float)(i * (r->number + 1));
    MUST(ncclAllReduce(send, recv, (size_t)n, ncclFloat32, ncclSum, r->comm, r->stream));
    sync_rank(r);
    for (int i = 0; i < n && r->comm != NULL; i++)
        CHECK(recv[i] == (float)(i * r->ranks * (r->ranks + 1) / 2));
}

static pid_t start(const char *program, const char *id, int number, const char *mode) {
    char text[16];
    pid_t child = fork();
    if (child == 0) {
        snprintf(text, sizeof text, "%d", number);
        /* NCCL then assumes that each rank is on its own machine. */
        if (strcmp(mode, "nodes") == 0)
            setenv("NCCL_HOSTID", text, 1);
        execl(program, program, mode, text, id, (char *)NULL);
        _exit(127);
    }
    return child;
}

static void *abort_main(void *arg) {
    struct rank *r = arg;
    usleep(50000); /* usually the kernel hangs by then; the result is the same if not */
    MUST(ncclCommAbort(r->comm));
    return NULL;
}

/* The kernel of the remaining rank runs until the abort, and reports no error before. */
static void survive(struct rank *r, pid_t victim) {
    pthread_t thread;
    int status;
    ncclResult_t state;
    float *send = (float *)(uintptr_t)r->segment.at;
    CHECK(waitpid(victim, &status, 0) == victim && WIFSIGNALED(status));
    MUST(ncclAllReduce(send, send, 5000, ncclFloat32, ncclSum, r->comm, r->stream));
    MUST(ncclCommGetAsyncError(r->comm, &state));
    CHECK(state == ncclSuccess);
    EXPECT(CUDA_ERROR_NOT_READY, cuStreamQuery(r->stream));
    pthread_create(&thread, NULL, abort_main, r);
    sync_rank(r);
    pthread_join(thread, NULL);
    r->comm = NULL;
    r->window = NULL;
}

static void run(struct rank *r, ncclUniqueId *id, const char *mode, pid_t *children) {
    open_rank(r);
    connect_rank(r, id);
    sum(r, r->segment.at);
    register_rank(r);
    CHECK((r->window == NULL) == (strcmp(mode, "nodes") == 0 || strcmp(mode, "null") == 0));
    sum(r, r->segment.at);
    sum(r, r->segment.alias);
    if (strcmp(mode, "kill") == 0 && r->number == 1)
        raise(SIGKILL);
    if (strcmp(mode, "kill") == 0)
        survive(r, children[1]);
    close_rank(r);
}

int main(int argc, char **argv) {
    CHECK(argc >= 2);
    ncclUniqueId id;
    char text[260];
    pid_t children[2] = {0};
    struct rank r = {.number = argc > 2 ? atoi(argv[2]) : 0, .ranks = 2};
    if (r.number == 0) {
        MUST(cuInit(0));
        MUST(ncclGetUniqueId(&id));
        write_id(&id, text);
        children[1] = start(argv[0], text, 1, argv[1]);
    } else {
        read_id(&id, argv[3]);
    }
    run(&r, &id, argv[1], children);
    int status = 0;
    if (r.number == 0 && strcmp(argv[1], "kill") != 0)
        CHECK(waitpid(children[1], &status, 0) == children[1] && status == 0);
    return 0;
}
