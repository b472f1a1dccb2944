/* State of the process and its threads, for the C part of the library. */
#ifndef SYMMEM_STATE_H
#define SYMMEM_STATE_H

#include <stdint.h>

/* Exports a function. All others are hidden. */
#define API __attribute__((visibility("default")))

/* Not 0 in a child of fork(), where Go's threads do not exist. */
extern volatile int symmem_forked;

/* Not 0 if symmem_refused must be called: in a child of fork(), and in signal handlers that run
 * during a collective. */
extern volatile int symmem_unusual;

/* Mark the time in which this thread waits for a collective. If it is not the main thread, the
 * function that polls other threads is called meanwhile. */
void symmem_begin_wait(void);
void symmem_end_wait(void);

/* Returns the error of functions that wait or use streams in the current state, or SYMMEM_OK. */
int symmem_refused(void);

/* Calls a Go function that may wait or use streams, unless symmem_refused returns an error. */
#define WAITING(call)                                                                              \
	({                                                                                             \
		int refused_ = __builtin_expect(symmem_unusual, 0) ? symmem_refused() : SYMMEM_OK;         \
		refused_ ? refused_ : (call);                                                              \
	})

/* Not 0 while the process exits. */
extern volatile int symmem_exiting;

int symmem_selected(void);
uint32_t symmem_current_site(void);

#endif
