/* What a caller does while a function of the library waits: it is asked on its own thread, so that
 * it can see to its signals there. */
#include <pthread.h>
#include <time.h>

#include "_cgo_export.h"
#include "shim.h"
#include "state.h"

typedef int (*asked)(void);

static asked on_main, elsewhere;
static pthread_t main_thread;
static int has_main;

/* Not 0 while the main thread is asked in the middle of a collective. */
static volatile int in_collective;

API int symmem_set_poll(asked poll, asked aside) {
	if (__builtin_expect(symmem_forked, 0)) return SYMMEM_ERR_FORKED;
	on_main = poll;
	elsewhere = aside;
	main_thread = pthread_self();
	has_main = poll != 0;
	return goSetPoll(poll != 0 || aside != 0);
}

static int is_main(void) { return has_main && pthread_equal(pthread_self(), main_thread); }

/* Not 0 while the main thread is asked. A handler that waits in its answer is asked as other threads
 * are: the main thread's function has not returned yet. */
static volatile int asking;

static int ask_main(void) {
	asking = 1;
	int answer = on_main();
	asking = 0;
	return answer;
}

int symmem_poll(void) {
	if (symmem_forked) return 0;
	if (is_main() && !asking) return ask_main();
	return elsewhere ? elsewhere() : 0;
}

/* How long a wait in the middle of a collective goes on between two questions. */
enum { PERIOD_NS = 100000000 };

int symmem_poll_in_collective(void) {
	static struct timespec latest;
	struct timespec now;
	if (symmem_forked || !is_main() || asking) return 0;
	if (clock_gettime(CLOCK_MONOTONIC, &now)) return 0;
	if ((now.tv_sec - latest.tv_sec) * 1000000000LL + now.tv_nsec - latest.tv_nsec < PERIOD_NS)
		return 0;
	latest = now;
	in_collective = 1;
	symmem_unusual = 1;
	int answer = ask_main();
	in_collective = 0;
	symmem_unusual = symmem_forked;
	return answer;
}

static const char busy[] =
	"a signal handler has called symmem while the call that it interrupted holds a stream: leave "
	"that to the program after the handler, or raise an exception in it, which ends the call";

int symmem_refused(void) {
	if (symmem_forked) return SYMMEM_ERR_FORKED;
	if (!in_collective || !is_main()) return SYMMEM_OK;
	symmem_note_error(SYMMEM_ERR_INVALID, sizeof busy - 1, busy, 0, "");
	return SYMMEM_ERR_INVALID;
}
