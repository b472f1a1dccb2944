/* Declarations shared by the C and Go parts of the library. symmem.h declares the public ones. */
#ifndef SYMMEM_SHIM_H
#define SYMMEM_SHIM_H

#include "symmem.h"

/* The words of symmem_generation. */
extern int64_t symmem_words[SYMMEM_WORDS];

/* The inodes of the sockets that a child of fork closes, by descriptor. */
enum { SYMMEM_SOCKETS = 1 << 14 };
extern uint64_t symmem_sockets[SYMMEM_SOCKETS];

/* Stores the last error of the calling thread. Copies the texts. */
void symmem_note_error(int code, size_t text_length, const char *text, size_t detail_length,
                       const char *detail);

/* Copies a text to the caller's buffer, as described in symmem.h. */
int symmem_give(size_t from_length, const char *from, size_t size, char *text, size_t *length);

/* Makes frees do nothing while the process exits. */
void symmem_watch_exit(void);

/* Returns the current environment of C. */
char **symmem_environment(void);

/* Polls the caller during a collective, possibly with the lock of a stream held: on the main thread
 * and on threads between symmem_begin_wait and symmem_end_wait, at most ten times a second. */
int symmem_poll_in_collective(void);

#endif
