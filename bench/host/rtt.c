// rtt prints the median round trip of a word between two processors in nanoseconds. It shows where
// the virtual processors of this machine are placed at the moment.
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "measure.h"

enum { TRIPS = 4000, BATCHES = 31 };

typedef struct {
	_Alignas(128) _Atomic unsigned ping;
	_Alignas(128) _Atomic unsigned pong;
} words_t;

static void await(_Atomic unsigned *word, unsigned want) {
	while (atomic_load_explicit(word, memory_order_acquire) != want) __builtin_ia32_pause();
}

int main(void) {
	words_t *w = mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (w == MAP_FAILED || processors() < 2) {
		puts("0");
		return 0;
	}
	if (fork() == 0) {
		bind_rank(1);
		for (unsigned i = 1; i <= TRIPS * BATCHES; i++) {
			await(&w->ping, i);
			atomic_store_explicit(&w->pong, i, memory_order_release);
		}
		_exit(0);
	}
	bind_rank(0);
	double ns[BATCHES];
	unsigned i = 0;
	for (int b = 0; b < BATCHES; b++) {
		double begin = now();
		for (int t = 0; t < TRIPS; t++) {
			atomic_store_explicit(&w->ping, ++i, memory_order_release);
			await(&w->pong, i);
		}
		ns[b] = (now() - begin) / TRIPS * 1e9;
	}
	wait(NULL);
	qsort(ns, BATCHES, sizeof *ns, by_value);
	printf("%.0f\n", ns[BATCHES / 2]);
	return 0;
}
