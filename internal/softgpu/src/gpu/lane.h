/* What kernels and the driver know of the threads of a grid. Each is a lane: a coroutine with a
 * stack of its own. All lanes of a launch run on the thread of its stream, one at a time, until
 * they wait, so nothing here needs a lock. */
#ifndef SOFTGPU_GPU_LANE_H
#define SOFTGPU_GPU_LANE_H

#include <stddef.h>
#include <stdint.h>

#ifndef __cplusplus
#include <stdbool.h>
#else
extern "C" {
#endif

enum {
    GPU_LANES = 32,  /* of a warp */
    GPU_LINE = 128,  /* bytes of a line */
    GPU_GROUPS = 4,  /* at most, of lanes of a warp that move a line together */
    GPU_RING = 8     /* lines that a lane may be ahead of the others of its group */
};

struct gpu_lane {
    void *stack; /* where the lane goes on */
    struct gpu_warp *warp;
    uint32_t number;        /* in the warp */
    uint32_t thread;        /* in the block, along x */
    uint32_t loads, stores; /* of lines, so far */
    float value;            /* its part of a sum */
};

/* A line as the first lane of a group that came to it has found it. */
struct gpu_line {
    const char *at;
    uint64_t words[GPU_LINE / 8];
};

struct gpu_warp {
    uint32_t live;   /* sets of lanes: those that have not ended, */
    uint32_t ready;  /* those that can go on, */
    uint32_t paused; /* those that look again in the next round, */
    uint32_t here;   /* those that have come to a vote, and */
    uint32_t yes;    /* of these, those that voted yes */
    bool all, any;   /* how the last vote ended */
    uint32_t loaded[GPU_GROUPS][GPU_RING]; /* which load of the group a line is, from 1 */
    struct gpu_block *block;
    struct gpu_lane lanes[GPU_LANES];
    struct gpu_line lines[GPU_GROUPS][GPU_RING];
};

struct gpu_block {
    uint32_t number, threads, blocks; /* along x */
    uint32_t live, here;              /* lanes that have not ended, and that wait for the others */
    bool no, all;                     /* one has said no; how it ended last time */
    bool adds;                        /* those who come bring numbers, */
    float sum;                        /* which made this last time */
    uint32_t warp_count;
    struct gpu_warp *warps;
    struct gpu_grid *grid;
};

#define GPU_HIDDEN __attribute__((visibility("hidden")))

/* The lane that runs now. */
extern __thread struct gpu_lane *gpu_self __attribute__((tls_model("initial-exec"))) GPU_HIDDEN;

GPU_HIDDEN void gpu_pause(void);             /* lets the other lanes look first */
GPU_HIDDEN void gpu_moved(void);             /* says that this round has moved something */
GPU_HIDDEN void gpu_vote(bool mine);         /* the result is in the warp */
GPU_HIDDEN void gpu_sync(bool mine);         /* the result is in the block */
GPU_HIDDEN float gpu_sum(float mine);

/* Moves a lane's part of a line: one word of 8 bytes or two. */
GPU_HIDDEN void gpu_load_line(const void *at, uint64_t *words, uint32_t count);
GPU_HIDDEN void gpu_store_line(void *at, const uint64_t *words, uint32_t count);
GPU_HIDDEN uint64_t gpu_clock(void);

/* A kernel that can be launched: its parameters are one structure. */
struct gpu_kernel {
    const char *name;
    size_t bytes;
    void (*run)(const void *params);
};
extern const struct gpu_kernel gpu_kernels[] GPU_HIDDEN;
extern const size_t gpu_kernel_count GPU_HIDDEN;

#ifdef __cplusplus
}
#endif
#endif
