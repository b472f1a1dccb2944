/* What the C part and the Go part of the library share. symmem.h is for everybody else. */
#ifndef SYMMEM_SHIM_H
#define SYMMEM_SHIM_H

#include "symmem.h"

/* The words of symmem_generation. */
extern int64_t symmem_words[SYMMEM_WORDS];

/* The inodes of the sockets that a child of fork closes, by descriptor. */
enum { SYMMEM_SOCKETS = 1 << 14 };
extern uint64_t symmem_sockets[SYMMEM_SOCKETS];

/* Notes the latest error of the calling thread; the texts are copied. */
void symmem_note_error(int code, size_t text_length, const char *text, size_t detail_length,
                       const char *detail);

/* Copies text out as symmem.h says. */
int symmem_give(size_t from_length, const char *from, size_t size, char *text, size_t *length);

/* From now on frees do nothing once the process exits. */
void symmem_watch_exit(void);

/* The environment as C has it now. */
char **symmem_environment(void);

/* Asks the caller's thread, which is this one, whether the wait is to end: not 0 if so. */
int symmem_poll(void);

/* The same for a thread that waits in the middle of a collective, with a stream in its hands. Asks
 * nobody on other threads than the main one, and nobody more often than ten times a second. */
int symmem_poll_in_collective(void);

#endif
