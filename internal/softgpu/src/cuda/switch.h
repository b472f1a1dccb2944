/* Switches between stacks. */
#ifndef SOFTGPU_SWITCH_H
#define SOFTGPU_SWITCH_H

#include <stddef.h>

/* Prepares a stack that ends at top. The first switch to it calls main, which must not return.
 * Returns the stack to switch to. It may use memory at the upper end. */
void *switch_prepare(void *bottom, char *top, void (*main)(void));

/* Saves the state of this stack in *from, and continues on another stack. */
void switch_stack(void **from, void *to);

#endif
