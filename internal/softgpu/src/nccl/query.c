/* Queries of communicators, and local registrations, which have no effect here. */
#include <stdlib.h>

#include "comm.h"

enum property { COUNT, DEVICE, RANK };

static ncclResult_t tell(ncclComm_t comm, enum property which, int *value) {
    struct comm *c = comm_enter(comm);
    if (c == NULL || value == NULL)
        return report(ncclInvalidArgument, "asking no communicator");
    ncclResult_t result = comm_ready(c);
    if (result == ncclSuccess)
        *value = which == COUNT ? c->nranks : which == RANK ? c->rank : c->device;
    comm_leave(c);
    return result;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int *count) { return tell(comm, COUNT, count); }

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device) { return tell(comm, DEVICE, device); }

ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank) { return tell(comm, RANK, rank); }

ncclResult_t ncclCommRegister(ncclComm_t comm, void *buffer, size_t bytes, void **handle) {
    INJECT();
    struct comm *c = comm_enter(comm);
    struct registration *r = malloc(sizeof *r);
    if (c == NULL || r == NULL || handle == NULL || buffer == NULL || bytes == 0) {
        free(r);
        if (c != NULL)
            comm_leave(c);
        return report(ncclInvalidArgument, "ncclCommRegister: bad argument");
    }
    pthread_mutex_lock(&c->lock);
    r->next = c->registrations;
    c->registrations = r;
    pthread_mutex_unlock(&c->lock);
    *handle = r;
    comm_leave(c);
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle) {
    INJECT();
    if (handle == NULL)
        return ncclSuccess;
    struct comm *c = comm_enter(comm);
    if (c == NULL)
        return report(ncclInvalidArgument, "ncclCommDeregister: no communicator");
    pthread_mutex_lock(&c->lock);
    struct registration **at = &c->registrations;
    while (*at != NULL && *at != handle)
        at = &(*at)->next;
    struct registration *found = *at;
    if (found != NULL)
        *at = found->next;
    pthread_mutex_unlock(&c->lock);
    free(found);
    comm_leave(c);
    return found != NULL ? ncclSuccess
                         : report(ncclInvalidUsage, "Deregister: Could not find handle");
}
