/* Groups. The calls of a thread between ncclGroupStart and ncclGroupEnd are made at the end. Calls
 * of one communicator keep their order. Several communicators proceed concurrently. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>

#include "comm.h"

struct job { /* tasks of one communicator */
    struct job *next;
    struct comm *comm;
    struct task *tasks, **end;
    CUcontext context;
    ncclResult_t result;
    pthread_t thread;
};

static _Thread_local int depth;
static _Thread_local struct job *jobs;
static _Thread_local ncclResult_t first_error;

/* Records an error of a call inside a group. ncclGroupEnd returns it. */
ncclResult_t group_note(ncclResult_t result) {
    if (depth > 0 && result != ncclSuccess && first_error == ncclSuccess)
        first_error = result;
    return result;
}

static struct job *job_of(struct comm *c) {
    struct job **at = &jobs;
    while (*at != NULL && (*at)->comm != c)
        at = &(*at)->next;
    if (*at != NULL)
        return *at;
    struct job *j = calloc(1, sizeof *j);
    if (j == NULL)
        abort();
    j->comm = c;
    j->end = &j->tasks;
    comm_keep(c);
    *at = j;
    return j;
}

/* Removes all calls from a job, and plans them. */
static struct call *calls_of(struct job *j) {
    struct call *calls = NULL, **end = &calls;
    for (struct task *t = j->tasks; t != NULL; t = t->next)
        if (t->kind == CALL) {
            call_plan(j->comm, t->call);
            *end = t->call;
            end = &t->call->next;
            t->call = NULL;
        }
    return calls;
}

static ncclResult_t run_calls(struct job *j) {
    struct call *calls = calls_of(j);
    ncclResult_t result = calls_connect(j->comm, calls);
    if (result == ncclSuccess)
        return calls_launch(j->comm, calls);
    while (calls != NULL) {
        struct call *next = calls->next;
        call_free(calls);
        calls = next;
    }
    return result;
}

/* Connects, then registers windows, then launches. Windows therefore apply to calls of the same
 * group. */
static ncclResult_t run(struct job *j) {
    ncclResult_t result = ncclSuccess;
    for (struct task *t = j->tasks; t != NULL && result == ncclSuccess; t = t->next)
        if (t->kind == CONNECT)
            result = comm_connect(j->comm);
        else if (t->kind == REGISTER)
            result = window_register(j->comm, t->buffer, t->bytes, t->flags, t->window);
    return result == ncclSuccess ? run_calls(j) : result;
}

/* Ends a job. If a blocking communicator could not be connected, it is freed. */
static void finish(struct job *j) {
    struct comm *c = j->comm;
    bool gone = false;
    while (j->tasks != NULL) {
        struct task *t = j->tasks;
        j->tasks = t->next;
        if (t->call != NULL)
            call_free(t->call);
        if (t->kind == CONNECT && c->blocking && j->result != ncclSuccess) {
            *t->created = NULL;
            gone = true;
        }
        free(t);
    }
    if (!c->blocking)
        atomic_store(&c->state, (int)j->result);
    if (gone)
        comm_abandon(c);
    else
        comm_leave(c);
}

static void *job_main(void *arg) {
    struct job *j = arg;
    cuCtxSetCurrent(j->context);
    j->result = run(j);
    bool blocking = j->comm->blocking;
    finish(j);
    if (!blocking)
        free(j);
    return NULL;
}

static void start(struct job *j) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    cuCtxGetCurrent(&j->context);
    bool blocking = j->comm->blocking;
    if (!blocking)
        atomic_store(&j->comm->state, ncclInProgress);
    if (pthread_create(&j->thread, NULL, job_main, j) != 0)
        abort();
    if (!blocking)
        pthread_detach(j->thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Collects the result of a blocking job. */
static ncclResult_t collect(struct job *j, bool threaded) {
    if (threaded)
        pthread_join(j->thread, NULL);
    ncclResult_t result = j->result;
    free(j);
    return result;
}

/* Runs jobs concurrently, and waits for those of blocking communicators. */
static ncclResult_t run_many(struct job *list) {
    ncclResult_t result = ncclSuccess;
    struct job *waiting = NULL;
    while (list != NULL) {
        struct job *j = list;
        list = j->next;
        if (j->comm->blocking) {
            j->next = waiting;
            waiting = j;
        } else {
            result = ncclInProgress;
        }
        start(j);
    }
    while (waiting != NULL) {
        struct job *next = waiting->next;
        ncclResult_t one = collect(waiting, true);
        result = one != ncclSuccess ? one : result;
        waiting = next;
    }
    return result;
}

static ncclResult_t run_jobs(struct job *list, ncclResult_t error) {
    if (list == NULL || error != ncclSuccess) {
        while (list != NULL) {
            struct job *next = list->next;
            list->result = error;
            finish(list);
            free(list);
            list = next;
        }
        return error;
    }
    if (list->next != NULL || !list->comm->blocking)
        return run_many(list);
    list->result = run(list);
    finish(list);
    return collect(list, false);
}

ncclResult_t ncclGroupStart(void) {
    INJECT();
    depth++;
    return ncclSuccess;
}

static ncclResult_t end(void) {
    if (--depth > 0)
        return ncclSuccess;
    struct job *list = jobs;
    ncclResult_t error = first_error;
    jobs = NULL;
    first_error = ncclSuccess;
    return run_jobs(list, error);
}

ncclResult_t ncclGroupEnd(void) {
    INJECT();
    if (depth == 0)
        return report(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
    return end();
}

/* Adds a task to the group. Outside of a group the task is its own group. */
ncclResult_t group_add(struct task task) {
    struct task *t = malloc(sizeof *t);
    if (t == NULL)
        abort();
    *t = task;
    t->next = NULL;
    depth++;
    struct job *j = job_of(task.comm);
    *j->end = t;
    j->end = &t->next;
    return end();
}
