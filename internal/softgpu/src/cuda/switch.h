/* Switching between stacks. */
#ifndef SOFTGPU_SWITCH_H
#define SOFTGPU_SWITCH_H

#include <stddef.h>

/* Prepares a stack that ends at top so that the first switch to it calls main, which must not
 * return. Returns what to switch to. It may take memory from the upper end. */
void *switch_prepare(void *bottom, char *top, void (*main)(void));

/* Leaves this stack, saving where it goes on, and goes on where another was left. */
void switch_stack(void **from, void *to);

#endif
