/* Sends and receives. Those of one group proceed concurrently, so ranks may send to each other.
 * Those between the same two ranks keep their order. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"

struct move {
    const struct call *call;
    struct channel *channel;
    size_t done, bytes;
};

static size_t next_bytes(const struct move *m) {
    size_t left = m->bytes - m->done;
    return left < CHANNEL_BYTES ? left : CHANNEL_BYTES;
}

/* Writes a chunk into the channel if there is room. */
static bool advance_send(struct move *m) {
    uint32_t head = atomic_load(&m->channel->head.value);
    if (head - atomic_load(&m->channel->tail.value) >= 2)
        return false;
    size_t n = next_bytes(m);
    memcpy(m->channel->data[head % 2], m->call->send + m->done, n);
    m->done += n;
    flag_raise(&m->channel->head);
    return true;
}

static bool advance_recv(struct move *m) {
    uint32_t tail = atomic_load(&m->channel->tail.value);
    if (atomic_load(&m->channel->head.value) == tail)
        return false;
    size_t n = next_bytes(m);
    memcpy(m->call->recv + m->done, m->channel->data[tail % 2], n);
    m->done += n;
    flag_raise(&m->channel->tail);
    return true;
}

/* Advances the first incomplete call at each end of a channel. */
static bool advance(struct comm *c, struct move *moves, size_t n) {
    bool blocked[2][MAX_RANKS] = {{false}}, moved = false;
    for (size_t i = 0; i < n; i++) {
        struct move *m = &moves[i];
        bool sends = m->call->operation == SEND;
        if (m->done == m->bytes || blocked[sends][m->call->root])
            continue;
        while (m->done < m->bytes && (sends ? advance_send(m) : advance_recv(m))) {
            flag_raise(&shared_place(c, m->call->root)->doorbell);
            moved = true;
        }
        blocked[sends][m->call->root] = m->done < m->bytes;
    }
    return moved;
}

static bool finished(const struct move *moves, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (moves[i].done < moves[i].bytes)
            return false;
    return true;
}

static size_t collect(struct comm *c, const struct call *calls, struct move *moves) {
    size_t n = 0;
    for (; calls != NULL; calls = calls->next, n++) {
        bool sends = calls->operation == SEND;
        int from = sends ? c->rank : calls->root, to = sends ? calls->root : c->rank;
        moves[n] = (struct move){.call = calls, .channel = shared_channel(c, from, to)};
        moves[n].bytes = calls->count * type_bytes(calls->type);
    }
    return n;
}

/* Runs the calls of a group. Returns false if the communicator was aborted. */
bool pairs_run(struct comm *c, const struct call *calls) {
    size_t n = 0;
    for (const struct call *call = calls; call != NULL; call = call->next)
        n++;
    struct move *moves = calloc(n, sizeof *moves);
    if (moves == NULL)
        abort();
    collect(c, calls, moves);
    struct flag *bell = &shared_place(c, c->rank)->doorbell;
    bool going = true;
    while (going && !finished(moves, n)) {
        uint32_t rung = atomic_load(&bell->value);
        if (advance(c, moves, n))
            going = atomic_load(&c->aborted) == 0;
        else
            going = flag_await(c, bell, rung + 1);
    }
    free(moves);
    return going;
}
