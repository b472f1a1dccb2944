/* Polls callers whose calls wait. The caller's function runs on the waiting thread, so that it can
 * handle signals there. */
#include <pthread.h>
#include <time.h>

#include "_cgo_export.h"
#include "shim.h"
#include "state.h"

typedef int (*poll_function)(void);

static poll_function on_main, on_others;
static pthread_t main_thread;
static int has_main;

/* Not 0 while the main thread is polled during a collective. */
static volatile int in_collective;

API int symmem_set_poll(poll_function poll, poll_function aside) {
	if (__builtin_expect(symmem_forked, 0)) return SYMMEM_ERR_FORKED;
	on_main = poll;
	on_others = aside;
	main_thread = pthread_self();
	has_main = poll != 0;
	return goSetPoll(poll != 0 || aside != 0);
}

static int is_main(void) { return has_main && pthread_equal(pthread_self(), main_thread); }

/* Not 0 while the main thread is polled. If the main thread's function calls symmem and waits, that
 * wait polls as on other threads. */
static volatile int polling;

static int poll_main(void) {
	polling = 1;
	int end = on_main();
	polling = 0;
	return end;
}

API int symmem_poll(void) {
	if (symmem_forked) return 0;
	if (is_main() && !polling) return poll_main();
	return on_others ? on_others() : 0;
}

/* The time between two polls during a collective. */
enum { PERIOD_NS = 100000000 };

/* Not 0 while this thread waits for a collective that it has called. */
static _Thread_local int waits;

void symmem_begin_wait(void) { waits = 1; }

void symmem_end_wait(void) { waits = 0; }

/* Returns whether PERIOD_NS has passed since the last time it returned 1 on this thread. */
static int due(void) {
	static _Thread_local struct timespec latest;
	struct timespec now;
	if (clock_gettime(CLOCK_MONOTONIC, &now)) return 0;
	if ((now.tv_sec - latest.tv_sec) * 1000000000LL + now.tv_nsec - latest.tv_nsec < PERIOD_NS)
		return 0;
	latest = now;
	return 1;
}

int symmem_poll_in_collective(void) {
	if (symmem_forked || polling) return 0;
	if (!is_main()) return waits && on_others && due() ? on_others() : 0;
	if (!due()) return 0;
	in_collective = 1;
	symmem_unusual = 1;
	int end = poll_main();
	in_collective = 0;
	symmem_unusual = symmem_forked;
	return end;
}

static const char busy[] =
	"a signal handler called symmem during a collective: make the call after the handler, or raise "
	"an exception in the handler, which ends the collective";

int symmem_refused(void) {
	if (symmem_forked) return SYMMEM_ERR_FORKED;
	if (!in_collective || !is_main()) return SYMMEM_OK;
	symmem_note_error(SYMMEM_ERR_INVALID, sizeof busy - 1, busy, 0, "");
	return SYMMEM_ERR_INVALID;
}
