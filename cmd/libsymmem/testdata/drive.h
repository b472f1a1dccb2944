/* What the parts of the test program share. Each part is a scenario that one rank runs. */
#ifndef DRIVE_H
#define DRIVE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "symmem.h"

/* fail ends the program with the place and the latest error of the thread. */
_Noreturn static inline void fail(const char *file, int line, const char *what, int got) {
	char text[4096];
	int code = symmem_last_error(sizeof text, text, NULL);
	fprintf(stderr, "%s:%d: %s gives %d; latest error %d: %s\n", file, line, what, got, code, text);
	_Exit(1);
}

#define WANT(code, call)                                                                           \
	do {                                                                                           \
		int got_ = (call);                                                                         \
		if (got_ != (code)) fail(__FILE__, __LINE__, #call, got_);                                 \
	} while (0)
#define DO(call) WANT(SYMMEM_OK, call)
#define TRUE(what)                                                                                 \
	do {                                                                                           \
		if (!(what)) fail(__FILE__, __LINE__, #what, 0);                                           \
	} while (0)

/* contains looks for words in a text that a function gives. */
#define CONTAINS(words, ...)                                                                       \
	do {                                                                                           \
		char text_[1 << 16];                                                                       \
		size_t length_ = 0;                                                                        \
		(void)(__VA_ARGS__);                                                                       \
		if (!strstr(text_, words)) {                                                               \
			fprintf(stderr, "%s\n", text_);                                                        \
			fail(__FILE__, __LINE__, "no " #words " in " #__VA_ARGS__, 0);                      \
		}                                                                                          \
		TRUE(length_ == strlen(text_));                                                            \
	} while (0)

/* open_with opens this rank with options as JSON, and returns the world. */
static inline uint64_t open_with(const char *options) {
	uint64_t world;
	DO(symmem_open(strlen(options), options));
	DO(symmem_world(&world));
	return world;
}

extern int rank, size;

/* open_world opens a world as one of its ranks, with more options as JSON that begins with a comma.
 * Its store has a name that only this run uses. */
uint64_t open_world(const char *name, const char *more, int place, int ranks);

void sums(void);
void pads(void);
void groups(void);
void pools(void);
void pending(void);
void misuse(void);
void panics(void);
void freed_order(void);
void diverge(void);
void late(void);
void mismatch(void);
void lost(void);
void unexplained(void);
void forks(void);
void left_child(void);
void in_child(uint64_t world, void *at);
void locked(void);
void threads(void);
void signals(void);
void exit_live(void);
void exit_waiting(void);
void reopen(void);
void plug(void);
void attach(void);
void capture(void);
void norm(void);
void route(void);
void speed(void);
void messages(void);
void splits(void);
void worlds(void);
void worlds_lost(void);
void gpu_worlds(void);
void timeouts(void);
void waits(void);
void rooted(void);

#endif
