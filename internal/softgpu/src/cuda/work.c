/* Units of work with reference counts. */
#include <stdlib.h>

#include "driver.h"

struct work *work_new(void (*run)(void *, int), void (*drop)(void *), void *arg) {
    struct work *w = calloc(1, sizeof *w);
    if (w == NULL)
        abort();
    w->run = run;
    w->drop = drop;
    w->arg = arg;
    atomic_init(&w->references, 1);
    return w;
}

struct work *work_keep(struct work *w) {
    atomic_fetch_add(&w->references, 1);
    return w;
}

void work_release(struct work *w) {
    if (atomic_fetch_sub(&w->references, 1) > 1)
        return;
    if (w->drop != NULL)
        w->drop(w->arg);
    free(w);
}

/* Runs a work. On a failed device only works with always set run, because other works wait for
 * them. */
void work_run(struct work *w, int device) {
    if (w->always || atomic_load(&context_of(device)->error) == CUDA_SUCCESS)
        w->run(w->arg, device);
}
