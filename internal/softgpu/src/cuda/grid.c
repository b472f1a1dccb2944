/* Grids. Each lane runs until it waits or pauses. Then the next ready lane of its warp runs, and
 * then the next warp. In each round every ready lane runs once, so all lanes make progress. Lanes
 * that wait for a vote or for their block become ready when the last lane arrives. Lanes that pause
 * become ready in the next round. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "grid.h"
#include "switch.h"

__thread struct gpu_lane *gpu_self;

static bool backward;
static size_t room = SIZE_MAX;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* SOFTGPU_ORDER=down reverses the order of lanes, warps and blocks in all grids. SOFTGPU_BLOCKS
 * limits the number of blocks of a grid that are resident at once. */
static void read_environment(void) {
    const char *text = getenv("SOFTGPU_ORDER"), *blocks = getenv("SOFTGPU_BLOCKS");
    backward = text != NULL && strcmp(text, "down") == 0;
    if (blocks != NULL && atoi(blocks) > 0)
        room = (size_t)atoi(blocks);
}

static struct gpu_lane *take_ready(struct gpu_warp *w) {
    int next = backward ? 31 - __builtin_clz(w->ready) : __builtin_ctz(w->ready);
    w->ready &= ~(1u << next);
    return &w->lanes[next];
}

/* Switches to another ready lane of the warp, or to the scheduler. */
static void yield_lane(void) {
    struct gpu_lane *self = gpu_self;
    struct gpu_warp *w = self->warp;
    if (w->ready == 0) {
        switch_stack(&self->stack, w->block->grid->scheduler);
        return;
    }
    struct gpu_lane *next = take_ready(w);
    if (next == self)
        return;
    gpu_self = next;
    switch_stack(&self->stack, next->stack);
}

void gpu_pause(void) {
    struct gpu_lane *self = gpu_self;
    self->warp->paused |= 1u << self->number;
    yield_lane();
}

void gpu_moved(void) { gpu_self->warp->block->grid->moved = true; }

uint64_t gpu_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Completes a vote once all live lanes have arrived. */
static void close_vote(struct gpu_warp *w) {
    if (w->here == 0 || w->here != w->live)
        return;
    w->all = w->yes == w->here;
    w->any = w->yes != 0;
    w->voted = w->yes;
    w->ready |= w->here;
    w->here = 0;
    w->yes = 0;
}

void gpu_vote(bool mine) {
    struct gpu_lane *self = gpu_self;
    struct gpu_warp *w = self->warp;
    w->here |= 1u << self->number;
    w->yes |= (uint32_t)mine << self->number;
    close_vote(w);
    yield_lane();
}

/* Returns the larger value. A NaN is larger than any number. */
static float larger(float a, float b) { return a != a || a > b ? a : b; }

enum { SUM_WARPS = 16 };

/* Adds up the values of a block in the order of a GPU: the lanes of each warp in a tree, and then 16
 * warps in a tree. The values of other warps are 0. */
static void add_up(struct gpu_block *b) {
    float sums[SUM_WARPS] = {0};
    b->most = 0;
    for (uint32_t i = 0; i < b->warp_count; i++) {
        float v[GPU_LANES];
        for (int l = 0; l < GPU_LANES; l++) {
            v[l] = b->warps[i].lanes[l].value;
            b->most = larger(b->most, b->warps[i].lanes[l].most);
        }
        for (int step = GPU_LANES / 2; step > 0; step /= 2)
            for (int l = 0; l < step; l++)
                v[l] += v[l + step];
        if (i < SUM_WARPS)
            sums[i] = v[0];
    }
    for (int step = 1; step < SUM_WARPS; step *= 2)
        for (int i = 0; i < SUM_WARPS; i += 2 * step)
            sums[i] += sums[i + step];
    b->sum = sums[0];
}

/* Releases the lanes of a block once all live lanes have arrived. */
static void close_block(struct gpu_block *b) {
    if (b->here == 0 || b->here != b->live)
        return;
    b->all = !b->no;
    if (b->adds)
        add_up(b);
    b->adds = false;
    b->here = 0;
    b->no = false;
    b->grid->moved = true;
    for (uint32_t i = 0; i < b->warp_count; i++)
        b->warps[i].ready |= b->warps[i].live;
}

void gpu_sync(bool mine) {
    struct gpu_block *b = gpu_self->warp->block;
    b->here++;
    b->no = b->no || !mine;
    close_block(b);
    yield_lane();
}

void gpu_sum(float *mine, float *most) {
    gpu_self->value = *mine;
    gpu_self->most = *most;
    gpu_self->warp->block->adds = true;
    gpu_sync(true);
    *mine = gpu_self->warp->block->sum;
    *most = gpu_self->warp->block->most;
}

float gpu_maximum(float mine) {
    struct gpu_lane *self = gpu_self;
    self->most = mine;
    gpu_vote(true);
    for (uint32_t i = 0, from = self->number / 16 * 16; i < 16; i++)
        mine = larger(mine, self->warp->lanes[from + i].most);
    gpu_vote(true);
    return mine;
}

/* A lane publishes its next word only after all lanes have read the one before the last. */
void gpu_publish(uint32_t word) {
    struct gpu_lane *self = gpu_self;
    self->words[self->word_count++ % 2] = word;
    gpu_vote(true);
}

uint32_t gpu_published(uint32_t lane) {
    struct gpu_lane *other = &gpu_self->warp->lanes[lane];
    return other->words[(gpu_self->word_count - 1) % 2];
}

void *gpu_shared(size_t bytes) {
    if (bytes > SHARED) {
        fprintf(stderr, "softgpu: a block needs %zu bytes of shared memory; it has %d\n", bytes, SHARED);
        abort();
    }
    return gpu_self->warp->block->shared;
}

/* Returns the lowest word of a lane's stack. */
static uint32_t *stack_of(const struct gpu_grid *g, const struct gpu_warp *w, uint32_t number) {
    size_t lane = (size_t)(w - g->warps) * GPU_LANES + number;
    return (uint32_t *)(void *)(g->stacks + lane * STACK);
}

/* Ends a lane, and returns the stack to switch to. All lanes run the same code, so only the stack
 * of the first lane is checked for overflow. A check of the others would cost a page fault each. */
static void *lane_end(struct gpu_lane *self) {
    struct gpu_warp *w = self->warp;
    struct gpu_block *b = w->block;
    if (self->number == 0 && *stack_of(b->grid, w, 0) != STACK_MARK) {
        fprintf(stderr, "softgpu: a thread of a kernel needs more than %d bytes of stack\n", STACK);
        abort();
    }
    w->live &= ~(1u << self->number);
    b->live--;
    b->grid->moved = true;
    self->value = self->most = 0;
    close_vote(w);
    close_block(b);
    if (w->ready == 0)
        return b->grid->scheduler;
    gpu_self = take_ready(w);
    return gpu_self->stack;
}

/* Entry point of lanes. The function never returns, which would confuse the call stack of the
 * thread sanitizer. */
__attribute__((no_sanitize_thread)) static void lane_main(void) {
    struct gpu_lane *self = gpu_self;
    const struct gpu_grid *g = self->warp->block->grid;
    g->run(g->params);
    switch_stack(&self->stack, lane_end(self));
}

/* Starts a lane. Stacks begin at different offsets in a page. Otherwise they would compete for the
 * same cache sets. */
static void lane_start(struct gpu_grid *g, struct gpu_warp *w, uint32_t number, uint32_t thread) {
    struct gpu_lane *l = &w->lanes[number];
    uint32_t *bottom = stack_of(g, w, number);
    char *top = (char *)bottom + STACK - number % 16 * 64;
    *l = (struct gpu_lane){.warp = w, .number = number, .thread = thread};
    if (number == 0)
        *bottom = STACK_MARK;
    l->stack = switch_prepare(bottom, top, lane_main);
}

static void warp_start(struct gpu_grid *g, struct gpu_warp *w, uint32_t first) {
    struct gpu_block *b = w->block;
    uint32_t lanes = b->live - first < GPU_LANES ? b->live - first : GPU_LANES;
    w->live = w->ready = lanes == GPU_LANES ? ~0u : (1u << lanes) - 1;
    w->paused = w->here = w->yes = 0;
    memset(w->loaded, 0, sizeof w->loaded);
    for (uint32_t l = 0; l < GPU_LANES; l++)
        w->lanes[l].value = 0;
    for (uint32_t l = 0; l < lanes; l++)
        lane_start(g, w, l, (first + l) % g->block.x);
}

/* Starts the next block of the grid in the place of a block that has ended, if any is left. */
static void block_start(struct gpu_grid *g, struct gpu_block *b) {
    if (g->started == g->count)
        return;
    b->number = (uint32_t)(g->started++ % g->grid.x);
    b->blocks = g->grid.x;
    b->threads = g->block.x;
    b->live = g->block.x * g->block.y * g->block.z;
    b->here = 0;
    b->no = b->adds = false;
    for (uint32_t i = 0; i < b->warp_count; i++) {
        b->warps[i].block = b;
        warp_start(g, &b->warps[i], i * GPU_LANES);
    }
}

/* Runs each ready lane of a warp once. */
static void warp_turn(struct gpu_grid *g, struct gpu_warp *w) {
    w->ready |= w->paused;
    w->paused = 0;
    while (w->ready != 0) {
        gpu_self = take_ready(w);
        switch_stack(&g->scheduler, gpu_self->stack);
    }
}

static void block_turn(struct gpu_grid *g, struct gpu_block *b) {
    if (b->live == 0)
        return;
    for (uint32_t i = 0; i < b->warp_count; i++)
        warp_turn(g, &b->warps[backward ? b->warp_count - 1 - i : i]);
    if (b->live > 0)
        return;
    g->ended++;
    block_start(g, b);
}

/* Yields the processor to other ranks if no lane has made progress for some time. The longer the
 * wait, the longer the sleep. A round of a large grid may take as long as a peer needs, so the
 * sleep is at least twice the time of a round, within limits. */
static void wait_for_others(uint64_t waited, uint64_t round) {
    static const uint64_t brief = 200000, longest = 1000000;
    uint64_t sleep = waited / 4 < longest ? waited / 4 : longest;
    if (sleep < 2 * round)
        sleep = 2 * round < 4 * longest ? 2 * round : 4 * longest;
    if (waited + round < brief)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = (long)sleep}, NULL);
}

void grid_run(void (*run)(const void *params), const void *params, struct extent grid,
              struct extent block) {
    uint64_t count = (uint64_t)grid.x * grid.y * grid.z;
    uint32_t threads = block.x * block.y * block.z, warps = (threads + GPU_LANES - 1) / GPU_LANES;
    size_t places = count < WARPS / warps ? count : WARPS / warps;
    pthread_once(&once, read_environment);
    places = places < room ? places : room;
    struct gpu_grid *g = grid_take(places * warps);
    g->run = run;
    g->params = params;
    g->grid = grid;
    g->block = block;
    g->count = count;
    g->started = g->ended = 0;
    for (size_t i = 0; i < places; i++) {
        g->blocks[i] = (struct gpu_block){.grid = g, .warps = &g->warps[i * warps]};
        g->blocks[i].warp_count = warps;
        g->blocks[i].shared = g->shared + i * SHARED;
        block_start(g, &g->blocks[i]);
    }
    for (uint64_t still = 0; g->ended < count;) {
        uint64_t begin = gpu_clock();
        g->moved = false;
        for (size_t i = 0; i < places; i++)
            block_turn(g, &g->blocks[backward ? places - 1 - i : i]);
        if (g->moved) {
            still = 0;
            continue;
        }
        uint64_t end = gpu_clock();
        still = still == 0 ? end : still;
        wait_for_others(end - still, end - begin);
    }
    grid_give(g);
}
