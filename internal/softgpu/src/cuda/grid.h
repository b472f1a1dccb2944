/* Grids: the lanes of a launch and who of them runs. */
#ifndef SOFTGPU_GRID_H
#define SOFTGPU_GRID_H

#include "../gpu/lane.h"

enum {
    WARPS = 2048, /* of the blocks that run at once; the other blocks wait for these to end */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
    STACK = 64 << 10,
#else
    STACK = 16 << 10,
#endif
    STACK_MARK = 0x5ac4de19
};

/* A size of a grid or of a block. */
struct extent {
    uint32_t x, y, z;
};

/* A grid while it runs, with memory that later grids use again. */
struct gpu_grid {
    struct gpu_grid *next; /* in the list of those that nobody uses */
    char *stacks;
    struct gpu_warp *warps;
    struct gpu_block *blocks;
    size_t room; /* in warps, and so in blocks */

    void (*run)(const void *params);
    const void *params;
    struct extent grid, block;
    uint64_t started, ended, count; /* blocks */
    bool moved;
    void *scheduler; /* where the stream's thread goes on */
};

/* Runs a kernel to its end on this thread. */
void grid_run(void (*run)(const void *params), const void *params, struct extent grid,
              struct extent block);

/* room.c: takes a grid with room for some warps, and gives it back. */
struct gpu_grid *grid_take(size_t warps);
void grid_give(struct gpu_grid *g);

#endif
