/* State of the process: the words, forks, the exit. */
#define _DEFAULT_SOURCE /* S_ISSOCK, syscall */
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim.h"
#include "state.h"

extern char **environ;

_Alignas(64) int64_t symmem_words[SYMMEM_WORDS];
volatile int symmem_forked;
volatile int symmem_unusual;
volatile int symmem_exiting;

uint64_t symmem_sockets[SYMMEM_SOCKETS];

/* Calls fstat of the kernel: that of glibc needs version 2.33. */
static int status(int fd, struct stat *is) { return (int)syscall(SYS_fstat, fd, is); }

/* Closes the parent's sockets in the table. If the child kept them open, other ranks would not
 * detect the end of the parent. */
static void close_sockets(void) {
	for (int fd = 0; fd < SYMMEM_SOCKETS; fd++) {
		uint64_t inode = __atomic_load_n(&symmem_sockets[fd], __ATOMIC_RELAXED);
		struct stat is;
		if (inode && status(fd, &is) == 0 && S_ISSOCK(is.st_mode) && is.st_ino == inode) {
			(void)close(fd);
		}
	}
}

static void in_child(void) {
	if (!symmem_forked) close_sockets();
	symmem_forked = symmem_unusual = 1;
}

/* Registered when the library is loaded, so that no fork is missed. It calls no Go. */
__attribute__((constructor)) static void watch_forks(void) {
	(void)pthread_atfork(NULL, NULL, in_child);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void at_exit(void) { symmem_exiting = 1; }

static void register_exit(void) { (void)atexit(at_exit); }

void symmem_watch_exit(void) { (void)pthread_once(&once, register_exit); }

char **symmem_environment(void) { return environ; }

API uint32_t symmem_abi_version(void) { return SYMMEM_ABI_VERSION; }

API const volatile int64_t *symmem_generation(void) { return symmem_words; }
