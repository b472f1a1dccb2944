/* The state of the process and of its threads, inside the C part. */
#ifndef SYMMEM_STATE_H
#define SYMMEM_STATE_H

#include <stdint.h>

/* What the world sees; all else is hidden. */
#define API __attribute__((visibility("default")))

/* Not 0 in a child of fork(): Go's threads are not there. */
extern volatile int symmem_forked;

/* Not 0 if symmem_refused has to be asked: in a child of fork(), and in handlers of signals that
 * run in the middle of a collective. */
extern volatile int symmem_unusual;

/* The code with which a function that waits, or works on streams, is refused now, or SYMMEM_OK. */
int symmem_refused(void);

/* Calls a function of Go that may wait, or works on streams, unless it is refused. */
#define WAITING(call)                                                                              \
	({                                                                                             \
		int refused_ = __builtin_expect(symmem_unusual, 0) ? symmem_refused() : SYMMEM_OK;         \
		refused_ ? refused_ : (call);                                                              \
	})

/* Not 0 once the process exits. */
extern volatile int symmem_exiting;

int symmem_selected(void);
uint32_t symmem_current_site(void);

#endif
