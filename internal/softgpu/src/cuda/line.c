/* Lines of 128 bytes, which a group of lanes moves at once. A reader that sees the last word of a
 * line sees the whole line. Therefore the last word is written last and read first. */
#include <stdio.h>
#include <stdlib.h>

#include "grid.h"

enum { WORDS = GPU_LINE / 8, LAST = WORDS - 1 };

/* The position of a lane in its group, if each lane of the group moves the same number of words. */
struct seat {
    uint32_t place, first, lanes, group;
    char *line;
};

static struct seat seat_of(const void *at, uint32_t count) {
    uint32_t lanes = WORDS / count, number = gpu_self->number;
    struct seat s = {.place = number % lanes, .group = number / lanes, .lanes = lanes};
    s.first = number - s.place;
    s.line = (char *)(uintptr_t)at - s.place * count * 8;
    if ((uintptr_t)s.line % GPU_LINE != 0) {
        fprintf(stderr, "softgpu: thread %u moves %p, which is not its place in a line\n",
                gpu_self->thread, at);
        abort();
    }
    return s;
}

/* Lanes count their loads and stores in these fields. */
static uint32_t *loads_of(struct gpu_lane *l) { return &l->loads; }
static uint32_t *stores_of(struct gpu_lane *l) { return &l->stores; }

/* Reports whether the counts of all lanes of a group have reached a number. Lanes that have ended
 * are ignored. */
static bool group_has(struct gpu_warp *w, const struct seat *s,
                      uint32_t *field(struct gpu_lane *), uint32_t count) {
    for (uint32_t l = s->first; l < s->first + s->lanes; l++)
        if ((w->live >> l & 1) != 0 && (int32_t)(*field(&w->lanes[l]) - count) < 0)
            return false;
    return true;
}

/* Stores a part of a line. Only the lane with the last word waits for the other lanes. */
void gpu_store_line(void *at, const uint64_t *words, uint32_t count) {
    struct gpu_lane *self = gpu_self;
    struct seat s = seat_of(at, count);
    uint64_t *to = at;
    bool last = s.place == s.lanes - 1;
    self->stores++;
    while (last && !group_has(self->warp, &s, stores_of, self->stores))
        gpu_pause();
    for (uint32_t i = 0; i + 1 < count; i++)
        __atomic_store_n(&to[i], words[i], __ATOMIC_RELAXED);
    __atomic_store_n(&to[count - 1], words[count - 1], last ? __ATOMIC_RELEASE : __ATOMIC_RELAXED);
    gpu_moved();
}

static void read_line(struct gpu_line *to, const char *at) {
    const uint64_t *line = (const uint64_t *)(const void *)at;
    to->at = at;
    to->words[LAST] = __atomic_load_n(&line[LAST], __ATOMIC_ACQUIRE);
    for (int i = 0; i < LAST; i++)
        to->words[i] = __atomic_load_n(&line[i], __ATOMIC_RELAXED);
}

/* Loads a part of a line. The first lane of a group to arrive reads the whole line for the group.
 * It may be some lines ahead of the other lanes. */
void gpu_load_line(const void *at, uint64_t *words, uint32_t count) {
    struct gpu_lane *self = gpu_self;
    struct gpu_warp *w = self->warp;
    struct seat s = seat_of(at, count);
    uint32_t mine = self->loads + 1, *loaded = &w->loaded[s.group][mine % GPU_RING];
    struct gpu_line *line = &w->lines[s.group][mine % GPU_RING];
    while (*loaded != mine && !group_has(w, &s, loads_of, mine - GPU_RING))
        gpu_pause();
    if (*loaded != mine) {
        read_line(line, s.line);
        *loaded = mine;
    }
    if (line->at != s.line) {
        fprintf(stderr, "softgpu: thread %u loads a line that its group does not\n", self->thread);
        abort();
    }
    for (uint32_t i = 0; i < count; i++)
        words[i] = line->words[s.place * count + i];
    self->loads = mine;
}
