/* The memory of grids. It is kept for reuse, so each stack causes page faults only once. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "grid.h"

static struct gpu_grid *idle;
static pthread_mutex_t idle_lock = PTHREAD_MUTEX_INITIALIZER;

/* Maps pages. They are allocated when a lane first touches them. */
static void *pages(size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (at == MAP_FAILED)
        abort();
    return at;
}

/* Enlarges a grid. Doubling the size limits how often new pages are touched. */
static void grow(struct gpu_grid *g, size_t least) {
    size_t warps = 16;
    while (warps < least)
        warps *= 2;
    if (g->room > 0) {
        munmap(g->stacks, g->room * GPU_LANES * STACK);
        munmap(g->warps, g->room * sizeof *g->warps);
        munmap(g->blocks, g->room * sizeof *g->blocks);
        munmap(g->shared, g->room * SHARED);
    }
    g->room = warps;
    g->stacks = pages(warps * GPU_LANES * STACK);
    g->warps = pages(warps * sizeof *g->warps);
    g->blocks = pages(warps * sizeof *g->blocks);
    g->shared = pages(warps * SHARED);
}

struct gpu_grid *grid_take(size_t warps) {
    pthread_mutex_lock(&idle_lock);
    struct gpu_grid *g = idle;
    if (g != NULL)
        idle = g->next;
    pthread_mutex_unlock(&idle_lock);
    if (g == NULL)
        g = calloc(1, sizeof *g);
    if (g == NULL)
        abort();
    if (g->room < warps)
        grow(g, warps);
    return g;
}

void grid_give(struct gpu_grid *g) {
    pthread_mutex_lock(&idle_lock);
    g->next = idle;
    idle = g;
    pthread_mutex_unlock(&idle_lock);
}
