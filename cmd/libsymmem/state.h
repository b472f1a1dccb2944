/* The state of the process and of its threads, inside the C part. */
#ifndef SYMMEM_STATE_H
#define SYMMEM_STATE_H

#include <stdint.h>

/* What the world sees; all else is hidden. */
#define API __attribute__((visibility("default")))

/* Not 0 in a child of fork(): Go's threads are not there. */
extern volatile int symmem_forked;

/* Not 0 once the process exits. */
extern volatile int symmem_exiting;

int symmem_selected(void);
uint32_t symmem_current_site(void);

#endif
