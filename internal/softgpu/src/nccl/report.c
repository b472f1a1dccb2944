/* Errors, and the log lines of NCCL that report the path of a call. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm.h"

static char last[512];
static pthread_mutex_t last_lock = PTHREAD_MUTEX_INITIALIZER;

ncclResult_t report(ncclResult_t code, const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    pthread_mutex_lock(&last_lock);
    vsnprintf(last, sizeof last, format, rest);
    pthread_mutex_unlock(&last_lock);
    va_end(rest);
    return code;
}

/* Returns the last warning. As in NCCL, the process has one buffer for all communicators. */
const char *ncclGetLastError(ncclComm_t comm) {
    static _Thread_local char copy[sizeof last];
    (void)comm;
    pthread_mutex_lock(&last_lock);
    memcpy(copy, last, sizeof copy);
    pthread_mutex_unlock(&last_lock);
    return copy;
}

const char *ncclGetErrorString(ncclResult_t code) {
    static const char *const texts[] = {
        "no error",
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "internal error - please report this issue to the NCCL developers",
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
    };
    return (unsigned)code < sizeof texts / sizeof texts[0] ? texts[code] : "unknown result code";
}

static FILE *log_file;
static bool log_on;
static char log_host[64];
static pthread_once_t log_once = PTHREAD_ONCE_INIT;

/* Expands %h and %p in NCCL_DEBUG_FILE. */
static void expand(const char *pattern, char *path, size_t room) {
    size_t n = 0;
    for (; *pattern != '\0' && n + 80 < room; pattern++) {
        if (pattern[0] == '%' && pattern[1] == 'h') {
            n += (size_t)snprintf(path + n, room - n, "%s", log_host);
            pattern++;
        } else if (pattern[0] == '%' && pattern[1] == 'p') {
            n += (size_t)snprintf(path + n, room - n, "%d", (int)getpid());
            pattern++;
        } else {
            path[n++] = *pattern;
        }
    }
    path[n] = '\0';
}

static void open_log(void) {
    const char *level = getenv("NCCL_DEBUG");
    const char *parts = getenv("NCCL_DEBUG_SUBSYS");
    const char *pattern = getenv("NCCL_DEBUG_FILE");
    log_on = level != NULL && strcmp(level, "INFO") == 0 && parts != NULL &&
             (strstr(parts, "TUNING") != NULL || strstr(parts, "ALL") != NULL);
    if (!log_on)
        return;
    gethostname(log_host, sizeof log_host - 1);
    log_file = stdout;
    if (pattern == NULL || *pattern == '\0')
        return;
    char path[4096];
    expand(pattern, path, sizeof path);
    FILE *opened = fopen(path, "we");
    if (opened == NULL)
        return;
    setvbuf(opened, NULL, _IOLBF, 0);
    log_file = opened;
}

/* Logs the path of a call. Like NCCL since 2.28, only rank 0 logs it. */
void log_tuning(const struct comm *c, const char *format, ...) {
    pthread_once(&log_once, open_log);
    if (!log_on || c->rank != 0)
        return;
    char line[512];
    int n = snprintf(line, sizeof line, "%s:%d:%d [%d] NCCL INFO ", log_host, (int)getpid(),
                     (int)gettid(), c->device);
    va_list rest;
    va_start(rest, format);
    vsnprintf(line + n, sizeof line - (size_t)n, format, rest);
    va_end(rest);
    fprintf(log_file, "%s\n", line);
    fflush(log_file);
}
