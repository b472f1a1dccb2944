/* The set of live objects. With it a stale handle causes an error instead of a crash. */
#include <stdlib.h>

#include "driver.h"

struct handle {
    struct handle *next;
    enum kind kind;
    const void *object;
};

enum { BUCKETS = 1 << 14 };
static struct handle *buckets[BUCKETS];
static pthread_mutex_t handles_lock = PTHREAD_MUTEX_INITIALIZER;

static struct handle **handle_find_locked(enum kind kind, const void *object) {
    struct handle **at = &buckets[((uintptr_t)object >> 5) % BUCKETS];
    while (*at != NULL && ((*at)->object != object || (*at)->kind != kind))
        at = &(*at)->next;
    return at;
}

void handle_add(enum kind kind, const void *object) {
    struct handle *h = malloc(sizeof *h);
    if (h == NULL)
        abort();
    pthread_mutex_lock(&handles_lock);
    struct handle **at = &buckets[((uintptr_t)object >> 5) % BUCKETS];
    *h = (struct handle){.next = *at, .kind = kind, .object = object};
    *at = h;
    pthread_mutex_unlock(&handles_lock);
}

bool handle_live(enum kind kind, const void *object) {
    pthread_mutex_lock(&handles_lock);
    bool live = *handle_find_locked(kind, object) != NULL;
    pthread_mutex_unlock(&handles_lock);
    return live;
}

bool handle_remove(enum kind kind, const void *object) {
    pthread_mutex_lock(&handles_lock);
    struct handle **at = handle_find_locked(kind, object);
    struct handle *found = *at;
    if (found != NULL)
        *at = found->next;
    pthread_mutex_unlock(&handles_lock);
    free(found);
    return found != NULL;
}
