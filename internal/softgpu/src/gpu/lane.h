/* Declarations for kernels and the driver about the threads of a grid. Each thread is a lane: a
 * coroutine with its own stack. All lanes of a launch run on the thread of its stream, one at a
 * time, until they wait. No lock is therefore needed here. */
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
    GPU_LANES = 32,  /* lanes of a warp */
    GPU_LINE = 128,  /* bytes of a line */
    GPU_GROUPS = 4,  /* maximum number of groups of lanes that move a line together */
    GPU_RING = 8     /* lines that a lane may be ahead of its group */
};

struct gpu_lane {
    void *stack; /* saved stack of the lane */
    struct gpu_warp *warp;
    uint32_t number;        /* index in the warp */
    uint32_t thread;        /* index in the block along x */
    uint32_t loads, stores; /* numbers of lines so far */
    float value, most;      /* contributions to a sum and to a maximum */
    uint32_t words[2];      /* the last words that the lane has published, by the parity of their */
    uint32_t word_count;    /* numbers */
};

/* A line as read by the first lane of a group that reached it. */
struct gpu_line {
    const char *at;
    uint64_t words[GPU_LINE / 8];
};

struct gpu_warp {
    uint32_t live;   /* set of lanes that have not ended */
    uint32_t ready;  /* set of lanes that can continue */
    uint32_t paused; /* set of lanes that poll again in the next round */
    uint32_t here;   /* set of lanes that have reached a vote */
    uint32_t yes;    /* lanes in here that voted yes */
    bool all, any;   /* results of the last vote */
    uint32_t voted;  /* lanes that voted yes in the last vote */
    uint32_t loaded[GPU_GROUPS][GPU_RING]; /* number of the load that read a line, from 1 */
    struct gpu_block *block;
    struct gpu_lane lanes[GPU_LANES];
    struct gpu_line lines[GPU_GROUPS][GPU_RING];
};

struct gpu_block {
    uint32_t number, threads, blocks; /* along x */
    uint32_t live, here;              /* numbers of lanes that have not ended, and that wait */
    bool no, all;                     /* whether a lane voted no; result of the last vote */
    bool adds;                        /* whether the lanes add up values */
    float sum, most;                  /* results of the last sum and maximum */
    char *shared;
    uint32_t warp_count;
    struct gpu_warp *warps;
    struct gpu_grid *grid;
};

#define GPU_HIDDEN __attribute__((visibility("hidden")))

/* The running lane. */
extern __thread struct gpu_lane *gpu_self __attribute__((tls_model("initial-exec"))) GPU_HIDDEN;

GPU_HIDDEN void gpu_pause(void);             /* lets all other lanes poll */
GPU_HIDDEN void gpu_moved(void);             /* records progress in this round */
GPU_HIDDEN void gpu_vote(bool mine);         /* stores the result in the warp */
GPU_HIDDEN void gpu_sync(bool mine);         /* stores the result in the block */
/* Adds up a value over a block, and computes a maximum of values that are not negative or NaN. */
GPU_HIDDEN void gpu_sum(float *mine, float *most);
/* Returns the same over 16 neighbouring lanes. */
GPU_HIDDEN float gpu_maximum(float mine);
/* Publishes a word in the warp and waits for those of all lanes. */
GPU_HIDDEN void gpu_publish(uint32_t word);
GPU_HIDDEN uint32_t gpu_published(uint32_t lane);
GPU_HIDDEN void *gpu_shared(size_t bytes);

/* Move a lane's part of a line: one or two words of 8 bytes. */
GPU_HIDDEN void gpu_load_line(const void *at, uint64_t *words, uint32_t count);
GPU_HIDDEN void gpu_store_line(void *at, const uint64_t *words, uint32_t count);
GPU_HIDDEN uint64_t gpu_clock(void);

/* A kernel that can be launched. Its parameters are one structure. */
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
