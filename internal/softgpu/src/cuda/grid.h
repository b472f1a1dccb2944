/* Grids: the lanes of a launch and their scheduling. */
#ifndef SOFTGPU_GRID_H
#define SOFTGPU_GRID_H

#include "../gpu/lane.h"

enum {
    WARPS = 2048, /* limit for all resident blocks; other blocks wait until these end */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
    STACK = 64 << 10,
#else
    STACK = 16 << 10,
#endif
    STACK_MARK = 0x5ac4de19,
    SHARED = 48 << 10 /* shared memory of a block */
};

/* The size of a grid or of a block. */
struct extent {
    uint32_t x, y, z;
};

/* A running grid. Later grids reuse its memory. */
struct gpu_grid {
    struct gpu_grid *next; /* in the list of unused grids */
    char *stacks;
    struct gpu_warp *warps;
    struct gpu_block *blocks;
    char *shared;
    size_t room; /* capacity in warps, and therefore in blocks */

    void (*run)(const void *params);
    const void *params;
    struct extent grid, block;
    uint64_t started, ended, count; /* numbers of blocks */
    bool moved;
    void *scheduler; /* stack of the stream's thread */
};

/* Runs a kernel to its end on this thread. */
void grid_run(void (*run)(const void *params), const void *params, struct extent grid,
              struct extent block);

/* room.c: take or return a grid with capacity for some warps. */
struct gpu_grid *grid_take(size_t warps);
void grid_give(struct gpu_grid *g);

#endif
