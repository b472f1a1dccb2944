/* Switches between stacks. On x86-64 assembly does this in a few nanoseconds. Elsewhere ucontext
 * does it, with a system call for the signal mask each time. */
#include <stdint.h>
#include <string.h>

#include "switch.h"

#if defined(__x86_64__) && !defined(SOFTGPU_UCONTEXT)

/* Callee-saved registers are pushed on the stack. The control words of floating point are the same
 * on all stacks, so they are not saved. */
__asm__(".text\n"
        ".p2align 4\n"
        ".globl switch_stack\n"
        ".hidden switch_stack\n"
        ".type switch_stack, @function\n"
        "switch_stack:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size switch_stack, .-switch_stack\n");

/* On entry to a function the stack pointer is 8 bytes below a multiple of 16, and points to the
 * return address. */
void *switch_prepare(void *bottom, char *top, void (*main)(void)) {
    (void)bottom;
    uintptr_t *at = (uintptr_t *)((uintptr_t)top & ~(uintptr_t)15);
    *--at = 0;
    *--at = (uintptr_t)main;
    for (int kept = 0; kept < 6; kept++)
        *--at = 0;
    return at;
}

#else

#include <ucontext.h>

void *switch_prepare(void *bottom, char *top, void (*main)(void)) {
    ucontext_t *at = (ucontext_t *)(((uintptr_t)top - sizeof *at) & ~(uintptr_t)63);
    getcontext(at);
    at->uc_stack.ss_sp = bottom;
    at->uc_stack.ss_size = (size_t)((char *)at - (char *)bottom);
    at->uc_link = NULL;
    makecontext(at, main, 0);
    return at;
}

void switch_stack(void **from, void *to) {
    ucontext_t here;
    *from = &here;
    swapcontext(&here, to);
}

#endif
