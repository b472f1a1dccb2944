/*
 * symmem.h is the C interface of libsymmem.so: symmetric GPU memory for collectives.
 *
 * A process is one rank of a world. It opens symmem, joins groups of ranks, allocates memory that
 * lies at the same place on every rank, registers it at the ends of scopes, and queues collectives
 * on its CUDA streams. It can be a rank of several worlds at once: see "Several worlds".
 *
 * Rules that hold for every function, unless it says otherwise:
 *
 *   Results    Functions that return int return SYMMEM_OK or an error code from the list below.
 *              symmem_last_error, called on the same thread, returns the reason and what to do.
 *              Results are written through pointers only if the function returns SYMMEM_OK.
 *   Sizes      precede the pointers to which they belong. They are in bytes, counts in elements.
 *              Negative or excessive values are errors, never undefined behavior.
 *   Ownership  The caller owns all memory that it passes. symmem keeps no pointer to it after the
 *              call, except to the buffers of collectives, which must live until the stream has
 *              done the work. Memory that symmem returns through these functions is not freed.
 *   Text       is UTF-8. Input has a length and needs no terminating zero. Output is written to a
 *              buffer of `size` bytes and ends with a zero; *length is the length without the zero.
 *              If the output does not fit, it is truncated, *length is the full length, and the
 *              result is SYMMEM_ERR_SHORT. Pass size 0 and a null pointer to get the length.
 *   Handles    are numbers; 0 is never a handle. A closed handle is rejected with
 *              SYMMEM_ERR_CLOSED, and its number is not reused.
 *   Threads    Any thread may call any function at any time, and may hold locks. Collective calls
 *              must be made in the same order on every rank of their group.
 *   Waiting    Functions marked "collective" wait for other ranks, up to the timeout of their
 *              group; no other function waits for another rank.
 *   Forks      In a child of fork() every function returns SYMMEM_ERR_FORKED, or null, and does
 *              nothing. The parent is not affected. The child closes the sockets of symmem. Start
 *              workers by spawn or forkserver.
 *   Panics     A panic inside symmem becomes SYMMEM_ERR_PANIC, with a stack trace in the message.
 *   Streams    are CUstream or cudaStream_t values as numbers; 0 is CUDA's default stream. They
 *              are numbered in the order of their first use here, and ranks must use theirs in the
 *              same order, as they must make the same allocations. A stream must live until
 *              symmem_stream_forget or symmem_close. On the host backend any number names a stream.
 */
#ifndef SYMMEM_H
#define SYMMEM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. It increases when functions are added. Nothing is renamed or
 * removed within one major version (the thousands). The header of a release also defines
 * SYMMEM_VERSION, the version of the release as text. */
#define SYMMEM_ABI_VERSION 1009

/* Codes, each with its cause and what the caller can do about it. */
enum {
	SYMMEM_OK = 0,
	SYMMEM_ERR_INVALID = 1,       /* arguments that are never valid */
	SYMMEM_ERR_CLOSED = 2,        /* the handle, or symmem itself, was closed */
	SYMMEM_ERR_UNSUPPORTED = 3,   /* the backend cannot do this */
	SYMMEM_ERR_OUT_OF_MEMORY = 4, /* neither the pool nor the device has the bytes */
	SYMMEM_ERR_SIZE = 5,          /* zero, negative or excessive size */
	SYMMEM_ERR_DOUBLE_FREE = 6,   /* the pointer was freed before */
	SYMMEM_ERR_FREED = 7,         /* memory of a buffer that was freed, or of a closed pool */
	SYMMEM_ERR_FOREIGN = 8,       /* a pointer that symmem did not return */
	SYMMEM_ERR_CAPTURING = 9,     /* not possible during a capture; the capture stays valid */
	SYMMEM_ERR_OUT_OF_RANGE = 10, /* a buffer is too short for the call; nothing was launched */
	SYMMEM_ERR_ABORTED = 11,      /* some rank called symmem_group_abort */
	SYMMEM_ERR_DIVERGENCE = 12,   /* ranks differ; the detail has the first difference */
	SYMMEM_ERR_TIMEOUT = 13,      /* ranks are late; the detail lists them */
	SYMMEM_ERR_RANK_LOST = 14,    /* processes of ranks have ended; the detail lists them */
	SYMMEM_ERR_FORKED = 15,       /* this process is a child of fork() */
	SYMMEM_ERR_NOT_OPEN = 16,     /* call symmem_open first */
	SYMMEM_ERR_LIVE = 17,         /* buffers are still live: free them, or force the close */
	SYMMEM_ERR_SHORT = 18,        /* the text did not fit */
	SYMMEM_ERR_PANIC = 19,        /* a panic inside symmem: report it, with the message */
	SYMMEM_ERR_FAILED = 20,       /* a library or the system failed; the message has its error */
	SYMMEM_ERR_INTERRUPTED = 21,  /* the function of symmem_set_poll has ended the wait */
	SYMMEM_ERR_BUSY = 22,         /* work in progress may use memory that is to be suspended */
	SYMMEM_ERR_SUSPENDED = 23     /* the pool or group is suspended: resume it on every rank */
};

/* Element types. For types without arithmetic (bool, float8) use the one of their size: gathers,
 * broadcasts and all-to-alls only move bytes. */
enum {
	SYMMEM_FLOAT64 = 0,
	SYMMEM_FLOAT32 = 1,
	SYMMEM_FLOAT16 = 2,
	SYMMEM_BFLOAT16 = 3,
	SYMMEM_INT8 = 4,
	SYMMEM_INT32 = 5,
	SYMMEM_INT64 = 6,
	SYMMEM_UINT8 = 7,
	SYMMEM_INT16 = 8, /* NCCL cannot reduce 16-bit integers */
	SYMMEM_UINT16 = 9,
	SYMMEM_UINT32 = 10,
	SYMMEM_UINT64 = 11
};

/* Reductions. The list is generated by driver/gen. */
enum {
	SYMMEM_SUM = 0,
	SYMMEM_PROD = 1,
	SYMMEM_MIN = 2,
	SYMMEM_MAX = 3,
	SYMMEM_AVG = 4,
	SYMMEM_BAND = 5, /* bitwise, of integers, on the host backend */
	SYMMEM_BOR = 6, /* bitwise, of integers, on the host backend */
	SYMMEM_BXOR = 7, /* bitwise, of integers, on the host backend */
	SYMMEM_PREMUL_SUM = 8 /* for symmem_premul_sum */
};

/* Operations, for symmem_collective and symmem_explain. The list is generated by driver/gen. */
enum {
	SYMMEM_ALL_REDUCE = 0,
	SYMMEM_ALL_GATHER = 1,
	SYMMEM_REDUCE_SCATTER = 2,
	SYMMEM_BROADCAST = 3,
	SYMMEM_REDUCE = 4,
	SYMMEM_ALL_TO_ALL = 5,
	SYMMEM_SEND = 6,
	SYMMEM_RECV = 7,
	SYMMEM_BARRIER = 8,
	SYMMEM_ALL_TO_ALL_V = 9, /* for symmem_explain; symmem_all_to_all_v makes the call */
	SYMMEM_ALL_GATHER_V = 10, /* for symmem_explain; symmem_all_gather_v makes the call */
	SYMMEM_REDUCE_SCATTER_V = 11, /* for symmem_explain; symmem_reduce_scatter_v makes the call */
	SYMMEM_GATHER = 12,
	SYMMEM_SCATTER = 13
};

/* The source with which symmem_recv receives from any rank, the earliest message first. */
enum { SYMMEM_ANY_SOURCE = -1 };

/* How symmem_value combines or compares the numbers of all ranks. */
enum {
	SYMMEM_VALUE_AGREE = 1, /* compares them; the result is the number */
	SYMMEM_VALUE_ANY = 2,   /* 1 if one is not 0, else 0 */
	SYMMEM_VALUE_ALL = 3,   /* 1 if none is 0, else 0 */
	SYMMEM_VALUE_MIN = 4,   /* the least */
	SYMMEM_VALUE_MAX = 5,   /* the greatest */
	SYMMEM_VALUE_SUM = 6,   /* their sum, which wraps around */
	SYMMEM_VALUE_AGREE_FLOAT = 8 /* compares the bits of a double; all NaNs are equal */
};

/* How the path of a collective is chosen. */
enum {
	SYMMEM_PATH_DEFAULT = 0, /* the setting of the group, at first that of symmem_open */
	SYMMEM_PATH_AUTO = 1,    /* by the tuning table */
	SYMMEM_PATH_PLAIN = 2,   /* always plain */
	SYMMEM_PATH_WINDOW = 3,  /* window if both buffers lie in windows */
	SYMMEM_PATH_DIRECT = 4,  /* symmem's kernels if they support the call */
	SYMMEM_PATH_TWO_LEVEL = 5 /* symmem's kernels inside machines, NCCL between them */
};

/* How much ranks compare. */
enum {
	SYMMEM_CHECK_DEFAULT = 0,
	SYMMEM_CHECK_OFF = 1,          /* nothing: ranks that differ compute wrong results silently */
	SYMMEM_CHECK_REGISTRATION = 2, /* histories, at registrations, at symmem_check, and now and then */
	SYMMEM_CHECK_EVERY = 3         /* also every collective, before its result is used */
};

/* ---- The library ------------------------------------------------------------------------- */

/* Returns the SYMMEM_ABI_VERSION of the library. It works before symmem_open and in forked
 * children, and enters no Go code. */
uint32_t symmem_abi_version(void);

/* Copies the message of this thread's last error, one line, and returns the error's code:
 * SYMMEM_OK with an empty text if no call of this thread has failed yet. A call that succeeds does
 * not clear it. The length may be null. A text that does not fit is truncated without an error. It
 * works in forked children. */
int symmem_last_error(size_t size, char *text, size_t *length);

/* Copies this thread's last error as JSON: {"code", "name", "message"} and, where known, the fields
 * below. Ranks are those of the world; "members" lists the ranks of the group in its order.
 *   divergence: {"group", "members": [ranks], "kind", "pool", "pool_name", "position", "last",
 *                "deviant": [ranks], "absent": [ranks], "why",
 *                "variants": [{"ranks": [..], "event": text, "site": "file:line"|""}]}
 *               and "elsewhere": {"rank": text} where ranks wait for each other in different places
 *   timeout:    {"doing", "waited_ms", "missing": [ranks], "activity": {"rank": text},
 *               "counts": text}
 *               and "absent": true if they never joined the group
 *   rank_lost:  {"doing", "ranks": [..]}
 *   memory:     {"requested", ...} in bytes. */
int symmem_last_error_json(size_t size, char *text, size_t *length);

/* ---- Opening and closing ------------------------------------------------------------------- */

/* Opens this rank. Collective over all ranks of the job.
 *
 * The options are a JSON object; an empty text takes everything from the environment (torchrun,
 * Open MPI, MPICH, Slurm, symmem launch). Unknown names are refused. All are optional:
 *
 *   rank, size, local_rank, local_size   numbers
 *   device         the ordinal of the CUDA device that is this rank's; default: local_rank
 *   store          "host:port" or "unix:@name", where rank 0 serves the store. To join an
 *                  existing store, such as a TCPStore of PyTorch, omit this and set SYMMEM_STORE
 *                  in the environment to its "host:port"
 *   token          authenticates ranks to the store; required with "host:port"
 *   backend        "auto", "host" or "nccl"
 *   tuning         file of a tuning table, or "built-in"
 *   trace          folder in which this rank writes a trace for `symmem diff`; the default is
 *                  SYMMEM_TRACE, else none
 *   path           "auto", "plain", "window" or "direct"
 *   deterministic  "ranks", "tree" or "rounded-tree": every reduction gives the bits of that
 *                  formula (docs/reference/deterministic.md), or is SYMMEM_ERR_UNSUPPORTED; "any":
 *                  none. The default is SYMMEM_DETERMINISTIC, else "any"
 *   check          "off", "registration" or "every"
 *   check_interval_ms   how often registration compares in the background; negative: never
 *   timeout_ms     bounds every wait for other ranks, unless a group has another; 30000
 *   warn_after_ms  how long this rank waits for live ranks before it warns about them, and again
 *                  every 2 * warn_after_ms after that; 30000; negative: never
 *   ordered_messages  true orders messages (symmem_send) with collectives: a message must be sent
 *                  and received between the same collectives, and an unmatched message is an error
 *                  at the next collective; default: false
 *   callsites      true records a call site with every allocation; default: whether
 *                  SYMMEM_CALLSITES is true or a number above 0
 *   scatter        a seed: segments are mapped at random addresses, which shows bugs that depend
 *                  on addresses
 *   gomaxprocs     threads that symmem's own work may use at a time; SYMMEM_GOMAXPROCS, else 2
 *   pool           {"capacity", "first_segment"} in bytes and {"placement": "creation"|"address"}
 *                  of pool 0, whose domain is the world
 *   environment    {"NAME": "value"}: variables that the process has set since the library was
 *                  loaded. Variables that C's environment has need not be repeated here.
 *
 * A second symmem_open is SYMMEM_ERR_INVALID, but after symmem_close it can be opened again;
 * symmem_world_open opens further worlds. It must not be called while a stream is captured. */
int symmem_open(size_t options_length, const char *options);

/* Closes this rank: leaves all groups and returns all memory. It waits for queued work and, on the
 * rank that serves the store, for the others to close or end, up to the timeout of symmem_open;
 * with force for a second at most. With live buffers it returns SYMMEM_ERR_LIVE and does nothing,
 * unless force is not 0. Then other ranks can no longer access the buffers, but this process can
 * read and write them until symmem_free, which also works after the close, has freed the last
 * buffer of a segment. It does nothing if symmem is not open.
 *
 * A process may exit without closing. */
int symmem_close(int force);

/* Returns 1 if symmem_open has opened a world, else 0; 0 in forked children. */
int symmem_is_open(void);

/* Sets functions that let the caller interrupt waits, for example to handle signals. While a call
 * waits, symmem calls one of them ten times a second on the waiting thread: `poll` on the thread
 * that calls this function, which should be the main thread, and `aside` on all others. Both are
 * null at first, and may be. If the function returns a value other than 0, the waiting call returns
 * SYMMEM_ERR_INTERRUPTED within a second, with these effects:
 *
 *   symmem_stream_synchronize   none: the work continues, and the call can be repeated
 *   symmem_open                 symmem is not open
 *   symmem_close                groups are aborted, and symmem closes in the background
 *   other collective calls      the group fails on all its ranks, unless the call was complete
 *
 * The functions may call symmem, with one exception: when `poll` is called during a collective on
 * the main thread, functions that wait or use streams return SYMMEM_ERR_INVALID. Calls that do not
 * wait do not poll and are not slower. This function works before symmem_open. */
int symmem_set_poll(int (*poll)(void), int (*aside)(void));

/* Calls the function of symmem_set_poll for this thread, as a wait of symmem would, and returns its
 * result, or 0 without a function. Waits of the caller for threads that call symmem can call it ten
 * times a second. */
int symmem_poll(void);

/* Describes the open rank as JSON: {"rank", "size", "source", "backend", "device", "library",
 * "check", "granularity", "machines", "alone", "pid"}. */
int symmem_describe(size_t size, char *text, size_t *length);

/* Returns the shared words: an array of SYMMEM_WORDS aligned counters that callers read without a
 * call. They never decrease. The address is never null and stays valid in all threads. In forked
 * children the words do not change.
 *
 *   [SYMMEM_WORD_PENDING]  increases when memory may have to be registered: a segment was mapped, a
 *                          pool or a group was opened, or a group has failed. symmem_attach does
 *                          not increase it, because it registers all memory. At the end of a scope,
 *                          call symmem_scope_end only if the word differs from the value that it
 *                          returned last for the same group.
 *   [SYMMEM_WORD_WINDOWS]  increases when windows were added or removed, so that earlier results of
 *                          symmem_windows and symmem_is_symmetric may be outdated.
 *   [SYMMEM_WORD_FAULTS]   counts failed groups as soon as this rank detects the failure: within
 *                          50 ms of a kernel's report, also in a graph that is replayed without a
 *                          call of symmem.
 *   [SYMMEM_WORD_REFUSED]  counts frees that failed in functions without a result.
 *   [SYMMEM_WORD_WARNINGS] counts warnings, which symmem_take_warning returns. */
enum {
	SYMMEM_WORD_PENDING = 0,
	SYMMEM_WORD_WINDOWS = 1,
	SYMMEM_WORD_FAULTS = 2,
	SYMMEM_WORD_REFUSED = 3,
	SYMMEM_WORD_WARNINGS = 4,
	SYMMEM_WORDS = 5
};
const volatile int64_t *symmem_generation(void);

/* Removes the oldest stored warning and copies it as JSON, or an empty text if there is none. The
 * warning stays if it does not fit (SYMMEM_ERR_SHORT) or if only its length was requested. Warnings
 * are added while calls wait in other threads. The last 64 are kept, also after symmem_close. It
 * does not wait.
 *   {"kind": "late", "message", "group", "doing", "waited_ms", "ranks": [ranks],
 *    "activity": {"rank": text}}: this rank is still waiting for these live ranks of the world. */
int symmem_take_warning(size_t size, char *text, size_t *length);

/* ---- Several worlds ------------------------------------------------------------------------- */

/* A process can be a rank of several worlds, such as that of a trainer and that of an inference
 * engine. Each world has separate ranks, a separate store and timeout, and separate groups, pools
 * and check level. A world fails and closes without an effect on the others. Its handle is the
 * group of all its ranks.
 *
 * Handles, pool numbers, call sites and words are the process's, so functions of groups, pools,
 * addresses and events work for all worlds. A pool can only be registered with groups of its world;
 * for other worlds its memory is ordinary memory. Functions of streams apply to the work of all
 * worlds. symmem_world, symmem_group_open, symmem_describe, symmem_stats and symmem_set_check apply
 * to the world of symmem_open. */

/* Opens a world. Collective over its ranks; other ranks need not know of it. The options are those
 * of symmem_open except "pool": the world has no pool until symmem_pool_open(*world, ...). Pass
 * "rank", "size", "store" and "token". Each world needs a "store" with an address that no other
 * world uses at the time, such as "unix:@" and random text for ranks of one machine; rank 0 serves
 * it, and passes it to the others beforehand. Worlds can be opened in several threads at once. */
int symmem_world_open(size_t options_length, const char *options, uint64_t *world);

/* Closes a world as symmem_close closes the world of symmem_open. */
int symmem_world_close(uint64_t world, int force);

/* Describes this rank of a world: see symmem_describe. */
int symmem_world_describe(uint64_t world, size_t size, char *text, size_t *length);

/* Returns the counters of a world: see symmem_stats. */
int symmem_world_stats(uint64_t world, size_t size, char *text, size_t *length);

/* Changes how much the ranks of a world compare: see symmem_set_check. */
int symmem_world_set_check(uint64_t world, int level);

/* Opens a group of a world, whose ranks are numbers of that world: see symmem_group_open. The
 * timeout bounds this call and later waits for ranks of the group: see symmem_group_set_timeout. 0
 * is the timeout of the world. */
int symmem_world_group_open(uint64_t world, size_t name_length, const char *name, size_t count,
                            const int32_t *ranks, int64_t timeout_ms, uint64_t *group);

/* ---- Groups -------------------------------------------------------------------------------- */

/* Returns the world of symmem_open, the group of all its ranks. Only symmem_close closes it. */
int symmem_world(uint64_t *group);

/* Opens a group. Collective over its ranks, which are numbers of the world, in group order. The
 * name is any text, the same on all ranks and not used for a group with other ranks; it can be
 * reused after symmem_group_close on all ranks. Ranks that belong to several groups open these in
 * the same order. */
int symmem_group_open(size_t name_length, const char *name, size_t count, const int32_t *ranks,
                      uint64_t *group);

/* Leaves a group: deregisters its windows on this rank, and forgets attached communicators as
 * symmem_detach(attachment, 0) does. Captured CUDA graphs keep the memory that they use until they
 * are destroyed; a replay ends without a result. It does not wait for other ranks. A world cannot
 * be closed by it. */
int symmem_group_close(uint64_t group);

/* Sets the timeout of a group on this rank, in milliseconds from 1 to a day. It bounds every wait
 * for another rank of the group that begins later; a rank that is late by more fails the group with
 * SYMMEM_ERR_TIMEOUT, which names the rank. At first it is the timeout of the world. A world is a
 * group, too: the timeout of later groups does not change with it. Captured kernels keep the
 * timeout of the capture. It does not wait. */
int symmem_group_set_timeout(uint64_t group, int64_t timeout_ms);

/* Releases the device memory of the group itself on all its ranks, until symmem_group_resume, and
 * stores the bytes that this rank has released, if `released` is not NULL. Collective. Addresses
 * and captured graphs stay valid. Pools are not affected: suspend them before, and resume them
 * after the group. If any rank has unfinished work or an unreceived message, all ranks return
 * SYMMEM_ERR_BUSY. Meanwhile, calls of the group return SYMMEM_ERR_SUSPENDED, and no captured call
 * of the group may be replayed. */
int symmem_group_suspend(uint64_t group, uint64_t *released);

/* Allocates the memory of a suspended group again, at the same addresses. Collective. */
int symmem_group_resume(uint64_t group);

/* Describes a group as JSON: {"id", "name", "rank", "size", "ranks", "timeout_ms", "stop_word",
 * "error": text or null}. stop_word is the address of a word of 32 bits that kernels can read and
 * that becomes nonzero when the group fails, or 0 if the group has none. */
int symmem_group_describe(uint64_t group, size_t size, char *text, size_t *length);

/* Returns SYMMEM_OK if the group has no fault, or if the ranks have not yet agreed on its cause.
 * Otherwise it returns the code of the fault, which becomes this thread's last error. It does not
 * wait. */
int symmem_group_error(uint64_t group);

/* Fails the group on all its ranks: waiting calls return SYMMEM_ERR_ABORTED. */
int symmem_group_abort(uint64_t group);

/* Sets how the paths of the group's collectives are chosen from now on (SYMMEM_PATH_...).
 * Collective. */
int symmem_group_set_path(uint64_t group, int path);

/* ---- Pools and allocation ------------------------------------------------------------------- */

/* Pools are numbered from 0. symmem_open opens pool 0, with the world as its domain. At most
 * SYMMEM_POOLS can be open in a process. */
enum { SYMMEM_POOLS = 16 };

/* Opens a pool whose domain is a group: the ranks of the group must make the same requests in the
 * same order, and the pool can be registered with any group within the domain. Every rank of the
 * domain opens its pools in the same order. It does not wait. The options are JSON, as "pool" of
 * symmem_open. *pool is the lowest free number above 0. */
int symmem_pool_open(uint64_t domain, size_t options_length, const char *options, int *pool);

/* Closes a pool: deregisters and unmaps its memory. Live buffers are treated as by symmem_close.
 * Pool 0 cannot be closed. */
int symmem_pool_close(int pool, int force);

/* Allocates on a stream. The memory is aligned to 512 bytes at least; its contents are undefined.
 * It may map memory, but registers nothing and does not wait. The error codes are SYMMEM_ERR_SIZE,
 * SYMMEM_ERR_OUT_OF_MEMORY, SYMMEM_ERR_NOT_OPEN and SYMMEM_ERR_CLOSED. */
int symmem_alloc(int pool, size_t bytes, uint64_t stream, void **address);

/* Allocates like symmem_alloc, but fails with SYMMEM_ERR_UNSUPPORTED unless device, an ordinal, is
 * that of the pool's rank (the host backend ignores it), and with SYMMEM_ERR_CAPTURING during a
 * capture of the stream: replays could use memory that has been freed and allocated again. */
int symmem_alloc_on(int pool, size_t bytes, int device, uint64_t stream, void **address);

/* Frees a buffer of symmem_alloc or an allocator function. Work that is queued on the stream of the
 * allocation may still use the buffer; work on other streams must be done. */
int symmem_free(void *address);

/* For torch.cuda.memory.CUDAPluggableAllocator: allocate for pool 0 and free, for pools of PyTorch
 * (torch.cuda.MemPool). The result is null on failure, with the reason as the thread's last error.
 * The device must be this rank's device.
 *
 * Frees ignore size and device. Invalid pointers are ignored, but counted in the shared words.
 * Frees take effect at the next allocation, registration or comparison of the pool, ordered by
 * place, because PyTorch frees segments in an order that depends on addresses. After symmem_close,
 * in forked children and while the process exits, frees do nothing. */
void *symmem_torch_alloc(size_t size, int device, void *stream);
void symmem_torch_free(void *ptr, size_t size, int device, void *stream);

/* Allocate from the pool with the number in the name, on any thread. All free functions accept
 * memory of all pools. */
void *symmem_torch_alloc_0(size_t size, int device, void *stream);
void *symmem_torch_alloc_1(size_t size, int device, void *stream);
void *symmem_torch_alloc_2(size_t size, int device, void *stream);
void *symmem_torch_alloc_3(size_t size, int device, void *stream);
void *symmem_torch_alloc_4(size_t size, int device, void *stream);
void *symmem_torch_alloc_5(size_t size, int device, void *stream);
void *symmem_torch_alloc_6(size_t size, int device, void *stream);
void *symmem_torch_alloc_7(size_t size, int device, void *stream);
void *symmem_torch_alloc_8(size_t size, int device, void *stream);
void *symmem_torch_alloc_9(size_t size, int device, void *stream);
void *symmem_torch_alloc_10(size_t size, int device, void *stream);
void *symmem_torch_alloc_11(size_t size, int device, void *stream);
void *symmem_torch_alloc_12(size_t size, int device, void *stream);
void *symmem_torch_alloc_13(size_t size, int device, void *stream);
void *symmem_torch_alloc_14(size_t size, int device, void *stream);
void *symmem_torch_alloc_15(size_t size, int device, void *stream);

/* Selects the pool of symmem_torch_alloc and nccl_alloc_plug on this thread from now on, and
 * returns the previous selection, so that scopes can nest. -1 selects local memory, which is never
 * registered. For invalid numbers it returns SYMMEM_SELECT_ERROR and changes nothing; a valid
 * number without an open pool makes the allocation fail. Enters no Go code. */
#define SYMMEM_SELECT_ERROR (-2)
int symmem_select(int pool);

/* Maps memory so that `bytes` more can be allocated on the default stream without growing the pool.
 * If the group is not 0, it registers the memory with it, and is collective over the group. Every
 * rank of the pool's domain must reserve the same. */
int symmem_reserve(int pool, size_t bytes, uint64_t group);

/* Reserves memory for allocations on one stream. */
int symmem_reserve_on(int pool, size_t bytes, uint64_t stream, uint64_t group);

/* Unmaps segments without live buffers, newest first, while at least `keep` bytes stay mapped.
 * Collective over the pool's domain. Memory used by CUDA graphs stays mapped until the graphs are
 * destroyed. */
int symmem_trim(int pool, size_t keep);

/* Releases the memory of a pool on all ranks of its domain, until symmem_pool_resume, and stores
 * the bytes that this rank has released, if `released` is not NULL. Collective over the domain.
 * Addresses stay valid. If `keep` is not 0, the contents are copied to the host and back; otherwise
 * the memory contains zeros afterwards. All ranks return SYMMEM_ERR_BUSY if any rank has unfinished
 * work, or an open graph with calls on the window path, or on the plain path unless the environment
 * variable NCCL_GRAPH_REGISTER is 0. Other captured graphs stay valid. Until symmem_pool_resume,
 * calls that use the memory return SYMMEM_ERR_SUSPENDED, and nothing else may use it. */
int symmem_pool_suspend(int pool, int keep, uint64_t *released);

/* Maps new memory for a suspended pool, at the same addresses. Collective over the domain. */
int symmem_pool_resume(int pool);

/* ---- Registration --------------------------------------------------------------------------- */

/* Ends a scope of a group: registers new memory of all pools whose domain contains the group, with
 * the group and its attached communicators. Collective if there is new memory; else it does not
 * wait. The stream is the caller's current stream. If there is new memory while it, or any other
 * stream that symmem knows, is captured, the result is SYMMEM_ERR_CAPTURING. *seen, which may be
 * null, is set to the value of SYMMEM_WORD_PENDING up to which all memory is registered.
 *
 * SYMMEM_ERR_DIVERGENCE, SYMMEM_ERR_TIMEOUT and SYMMEM_ERR_RANK_LOST are returned on every rank of
 * the group, and nothing is registered. Do not call it for a scope that ends with an exception: the
 * next end that all ranks reach registers the memory. */
int symmem_scope_end(uint64_t group, uint64_t stream, int64_t *seen);

/* Registers new memory of one pool, as symmem_scope_end does for all. */
int symmem_register_pending(uint64_t group, int pool, uint64_t stream);

/* Attaches a communicator of another library (an ncclComm_t) to the group: all present and future
 * windows of the group are also registered with the communicator, in the same order on all ranks.
 * Its ranks must be those of the group, in the same order. Collective over the group. The name
 * distinguishes the communicator from others with the same address, and must be the same on all
 * ranks; use for example the unique id in hexadecimal. No collective may run on the communicator
 * meanwhile. Attaching the same pointer and name again returns the same handle. */
int symmem_attach(uint64_t group, uint64_t comm, size_t name_length, const char *name,
                  uint64_t *attachment);

/* Detaches a communicator, and deregisters its windows on this rank if exists is not 0. Pass 0 if
 * the communicator was already destroyed or aborted. It does not wait. */
int symmem_detach(uint64_t attachment, int exists);

/* ---- Queries -------------------------------------------------------------------------------- */

/* Returns 1 if the range lies in one window of the group, else 0; 0 for closed groups and in forked
 * children. It takes no lock and does not wait. */
int symmem_is_symmetric(uint64_t group, size_t bytes, const void *address);

/* Writes the addresses at which this process can access a range of a window on every rank, by group
 * rank. `ranks` is the size of the group. The address of this rank is `address`. GPU addresses are
 * for kernels on this rank's device; those of the host backend can be read and written directly.
 * Nothing orders such accesses with those of other ranks: use symmem_barrier, or signal words. The
 * addresses are valid until the group or the pool is closed, or the segment is unmapped after
 * symmem_free. The result is SYMMEM_ERR_INVALID if the range is not registered with the group,
 * and SYMMEM_ERR_UNSUPPORTED, on every rank, if ranks cannot map each other's memory. It does not
 * wait. */
int symmem_peer_addresses(uint64_t group, size_t bytes, const void *address, size_t ranks,
                          uint64_t *addresses);

/* Writes what a kernel with NCCL's device API needs for a range of a window: the group's
 * communicator (an ncclComm_t, for ncclDevCommCreate), the window (an ncclWindow_t) and the offset
 * of the range in the window. Both handles become invalid when the group fails or is closed, and
 * the window also when addresses from symmem_peer_addresses do. NCCL requires that all calls on the
 * communicator, including those of symmem, come from one thread at a time, in the same order on all
 * ranks. The result is SYMMEM_ERR_UNSUPPORTED, with the reason, if NCCL has no window: open the
 * world with the path "window". It does not wait. */
int symmem_nccl_window(uint64_t group, size_t bytes, const void *address, uint64_t *comm,
                       uint64_t *window, uint64_t *offset);

/* Creates `words` signal words of 32 bits on every rank of a group, all 0, for kernels and programs
 * that wait for each other's accesses to peer addresses. `words` is from 1 to 16,777,216.
 * Collective. It writes the address of each rank's first word, by group rank. `ranks` is the size
 * of the group. The addresses are used as those of symmem_peer_addresses. A set takes at least
 * 2 MiB of memory on each rank: create one set and reuse it. Waits for a word have no timeout; the
 * caller must bound them. Returns SYMMEM_ERR_UNSUPPORTED on every rank if the ranks cannot map each
 * other's memory. */
int symmem_signal_words_open(uint64_t group, size_t words, size_t ranks, uint64_t *addresses);

/* Frees this rank's words, whose first one is at the address. No rank may use them any more. They
 * count as live buffers in symmem_close. */
int symmem_signal_words_close(const void *words);

/* Creates a checked pad on every rank of a group of at most 32 ranks, and writes the address of
 * this rank's pad. Kernels pass it to the functions of symmem_device.cuh to signal each other. Their
 * waits end within the timeout that the group has when the pad is created. Error messages name call
 * site n as names[n]: there are `sites` names, at most 4096, which are copied. Collective. Returns
 * SYMMEM_ERR_UNSUPPORTED on every rank if the ranks cannot map each other's memory. */
int symmem_pad_open(uint64_t group, size_t sites, const char *const *names, uint64_t *pad);

/* Returns SYMMEM_OK, or an error if a wait has failed on any rank: SYMMEM_ERR_TIMEOUT, RANK_LOST,
 * DIVERGENCE, INVALID, or the group's error if the group has failed. It does not wait for kernels:
 * call it after they have ended. A failed pad stays failed on all ranks: close it, and create
 * another one. */
int symmem_pad_check(uint64_t pad);

/* Describes the signals that this rank has not waited for, one per line. The text is empty if there
 * are none. It can be called while kernels wait for other signals. */
int symmem_pad_explain(uint64_t pad, size_t size, char *text, size_t *length);

/* Frees this rank's pad. No kernel of any rank may use it any more. All ranks must close pads in the
 * same order. After an error, such as a time-out, it can be called again. */
int symmem_pad_close(uint64_t pad);

/* Lists the windows of a group as pairs of address and bytes, in the order of addresses. Callers
 * can cache the list until SYMMEM_WORD_WINDOWS changes. capacity counts pairs; *count is the
 * number of windows, of which the first `capacity` are written. */
int symmem_windows(uint64_t group, size_t capacity, int64_t *pairs, size_t *count);

/* Locates an address: JSON {"pool", "segment", "offset", "bytes", "live", "address"}. pool is -1 in
 * local memory, and -2 in signal words. segment and offset are the same on every rank. bytes and
 * address describe the buffer that contains the address; if there is none, "live" is false, bytes
 * is 0 and address is the segment's. The result is SYMMEM_ERR_FOREIGN if the address is in no
 * segment. */
int symmem_locate(const void *address, size_t size, char *text, size_t *length);

/* Describes the path that a collective would take now, and why: JSON {"operation", "path", "why",
 * "registers"}. It has no effects and does not wait. */
int symmem_explain(uint64_t group, int operation, int64_t count, int type, const void *send,
                   const void *recv, size_t size, char *text, size_t *length);

/* Returns all counters as JSON: {"rank", "size", "backend", "check", "open",
 * "pools": [{"pool", "domain", "used", "requested", "high_water", "cached", "largest_free",
 *            "deferred", "pinned", "mapped", "segments", "windows", "events", "live"}],
 * "groups": {id: {"handle", "name", "windows", "registrations", "agreements",
 *            "paths": {...}, "tuning": {...},
 *            "attachments": [{"handle", "name", "windows"}]}},
 * "streams", "refused"}. Sizes are in bytes. */
int symmem_stats(size_t size, char *text, size_t *length);

/* ---- Comparison ------------------------------------------------------------------------------ */

/* Compares the histories of all pools whose domain contains the group. Collective. */
int symmem_check(uint64_t group);

/* Changes how much ranks compare (SYMMEM_CHECK_OFF to SYMMEM_CHECK_EVERY), for all groups.
 * Collective over the world. */
int symmem_set_check(int level);

/* The maximum length of a value's name in bytes. */
enum { SYMMEM_VALUE_NAME = 128 };

/* The arguments of symmem_value that are the same in many calls, so that callers prepare them
 * once. */
struct symmem_value {
	uint64_t group;
	int32_t operation; /* SYMMEM_VALUE_AGREE to SYMMEM_VALUE_AGREE_FLOAT */
	uint32_t site;     /* the call site; 0 for that of symmem_set_site */
	size_t name_length;
	char name[SYMMEM_VALUE_NAME];
};

/* Combines or compares numbers of all ranks of the group under a name, on the host, without streams
 * or GPUs. The n-th call with a name waits for the n-th call of every rank with it. *number is this
 * rank's number, and is set to the result of the operation; SYMMEM_VALUE_AGREE and
 * SYMMEM_VALUE_AGREE_FLOAT only read it. If these compare different numbers, or if the ranks'
 * operations differ, all ranks get SYMMEM_ERR_DIVERGENCE and the group stays usable;
 * symmem_last_error_json has each rank's number, call site and last ten numbers. A missing rank
 * fails the group, as in every collective call.
 *
 * Names have 1 to SYMMEM_VALUE_NAME bytes, and a group has 256 names at most. Calls with different
 * names do not wait for each other; calls with the same name are made one after the other. Any
 * thread may call. */
int symmem_value(const struct symmem_value *of, int64_t *number);

/* Compares a text of up to 1 MiB under a name, as SYMMEM_VALUE_AGREE compares a number. Errors
 * quote the beginning of each text. */
int symmem_agree_string(uint64_t group, size_t name_length, const char *name, size_t length,
                        const char *text, uint32_t site);

/* Begins a step of the program and compares it across the ranks of the group: its description, a
 * text of 1 to 1024 bytes such as "decode(batch=8)", and the number of collectives that each rank
 * has launched since its previous step, without those in graphs that other libraries replay. It
 * fails as SYMMEM_VALUE_AGREE does. No collective of the group may be launched during the call.
 * SYMMEM_STEP_GUARD=0 disables it. */
int symmem_step(uint64_t group, size_t length, const char *what, uint32_t site);

/* Adds a kind and a value, such as the size of a tensor, to the history of a pool. They must be
 * equal on all ranks: if they differ, the next comparison reports them with this thread's call
 * site. It does not wait. */
int symmem_note(int pool, int64_t kind, int64_t value);

/* Returns 1 if symmem is open with call sites enabled, else 0. */
int symmem_callsites(void);

/* Returns the number of a call site, a text such as "model.py:120", for symmem_set_site. The same
 * text has the same number. At most 65,535 call sites are kept; *site is 0 after that. */
int symmem_site(size_t text_length, const char *text, uint32_t *site);

/* Sets the call site of this thread's later calls, 0 for none, and returns the previous one. Enters
 * no Go code. */
uint32_t symmem_set_site(uint32_t site);

/* ---- Collectives --------------------------------------------------------------------------- */

/* The arguments of a collective or a message. Set what an operation does not use to 0. */
struct symmem_call {
	size_t size; /* sizeof(struct symmem_call): later versions of this header append fields */
	uint64_t group, stream;
	int32_t operation; /* SYMMEM_ALL_REDUCE to SYMMEM_SCATTER */
	int32_t type, op, path;
	int32_t root; /* the root, or the other rank of a message, or SYMMEM_ANY_SOURCE */
	int32_t tag;
	uint32_t flags; /* SYMMEM_CALL_WAIT or 0 */
	uint32_t site;  /* the call site; 0 for that of symmem_set_site */
	int64_t count;
	double factor; /* that of SYMMEM_PREMUL_SUM */
	const void *send;
	void *recv;
	int32_t *from; /* as in symmem_recv */
	size_t ranks;  /* the length of the lists below, which are those of symmem_all_to_all_v,
	                * symmem_all_gather_v and symmem_reduce_scatter_v; count is then 0 */
	const int64_t *send_counts, *send_offsets, *recv_counts, *recv_offsets;
	size_t more_count; /* the number of further calls that run together with this one */
	const struct symmem_call *more;
	uint64_t *event; /* set to an event after the call, or to 0 if the call is already complete */
};

/* Makes symmem_call wait until the stream is idle, and return the first error of its work. This is
 * faster than symmem_stream_synchronize after the call: on the host backend the calling thread does
 * the work that another thread would do if ranks are late. Unlike symmem_stream_synchronize, it
 * returns no freed buffers to their pools, so other ranks need not do the same. During a capture
 * the result is SYMMEM_ERR_CAPTURING, and nothing is queued. If the function of symmem_set_poll
 * ends the wait, the group fails. */
enum { SYMMEM_CALL_WAIT = 1 };

/* Makes the call that the arguments describe. The functions below do the same for some of the
 * operations.
 *
 * A call and those of `more` run as one call: the ranks order and compare them as a whole, and NCCL
 * gets them as one group. They may run in any order, so none may use the result of another. Their
 * group, stream, path, flags, site and event are those of the first. Messages cannot be in a list.
 *
 * With an event, the result is SYMMEM_ERR_CAPTURING during a capture, and nothing is queued. */
int symmem_call(const struct symmem_call *call);

/* Collectives are queued on the stream and return. Counts and semantics are NCCL's. During a
 * capture they become nodes of the graph. Every rank of the group must call them in the same
 * order. A range that begins in a buffer of a pool must end in the same buffer.
 *
 * Memory of a pool that is not yet registered with the group is registered first (collective),
 * except during a capture, when the call takes a path without windows. The path is
 * SYMMEM_PATH_DEFAULT or, for this call only and the same on all ranks, SYMMEM_PATH_PLAIN,
 * SYMMEM_PATH_WINDOW, SYMMEM_PATH_DIRECT or SYMMEM_PATH_TWO_LEVEL; SYMMEM_PATH_AUTO means the default here.
 *
 * The next call on the group, and symmem_stream_synchronize, return errors that happen after
 * queueing. */
int symmem_collective(uint64_t group, int operation, int64_t count, int type, int op, int root,
                      int path, const void *send, void *recv, uint64_t stream);

/* Reduces count elements of every rank's send into every rank's recv. send may be recv. */
int symmem_all_reduce(uint64_t group, int64_t count, int type, int op, int path, const void *send,
                      void *recv, uint64_t stream);

/* Multiplies every element by a factor and adds the products: SYMMEM_ALL_REDUCE,
 * SYMMEM_REDUCE_SCATTER or SYMMEM_REDUCE of a floating-point type. The factor is finite, not 0, and
 * the same on all ranks; ranks compare it. A rank that needs its own factor multiplies its input
 * before the call. root matters to SYMMEM_REDUCE alone. */
int symmem_premul_sum(uint64_t group, int operation, int64_t count, int type, double factor,
                      int root, int path, const void *send, void *recv, uint64_t stream);

/* Gathers count elements of every rank into recv, which has count elements for each rank. */
int symmem_all_gather(uint64_t group, int64_t count, int type, int path, const void *send,
                      void *recv, uint64_t stream);

/* Reduces send, which has count elements for each rank, and writes this rank's count to recv. */
int symmem_reduce_scatter(uint64_t group, int64_t count, int type, int op, int path,
                          const void *send, void *recv, uint64_t stream);

/* Copies count elements of the root's send to every rank's recv. All ranks pass a send buffer. */
int symmem_broadcast(uint64_t group, int64_t count, int type, int root, int path, const void *send,
                     void *recv, uint64_t stream);

/* Sends count elements to each rank and receives count from each. It cannot be mixed with
 * symmem_all_to_all_v on other ranks, even with equal counts. */
int symmem_all_to_all(uint64_t group, int64_t count, int type, int path, const void *send,
                      void *recv, uint64_t stream);

/* Sends a part of send to each rank and receives a part from each. `ranks` is the size of the
 * group. send_counts[r] elements at send_offsets[r] of send are sent to rank r, and recv_counts[r]
 * elements of rank r are written to recv_offsets[r] of recv. With null offsets parts are
 * contiguous. Counts may be 0 and may differ, but each rank must send the count that its peer
 * expects: otherwise no buffer is written and, with SYMMEM_CHECK_EVERY, all ranks get
 * SYMMEM_ERR_DIVERGENCE, whose detail lists the pairs. The lists are copied. send may be recv. It
 * registers no memory. */
int symmem_all_to_all_v(uint64_t group, size_t ranks, const int64_t *send_counts,
                        const int64_t *send_offsets, const int64_t *recv_counts,
                        const int64_t *recv_offsets, int type, const void *send, void *recv,
                        uint64_t stream);

/* Gathers counts[r] elements of each rank r into recv of every rank. The parts lie at the given
 * offsets of recv or, if offsets is null, one after another. The counts must be the same on all
 * ranks: they are compared as part of the call. Counts may be 0, `ranks` is the size of the group,
 * and the lists are copied. It registers no memory. It cannot be mixed with symmem_all_gather on
 * other ranks, even with equal counts. */
int symmem_all_gather_v(uint64_t group, size_t ranks, const int64_t *counts, const int64_t *offsets,
                        int type, const void *send, void *recv, uint64_t stream);

/* Reduces send, which has counts[r] elements for each rank r, and writes this rank's part to recv.
 * The parts lie in send as those of symmem_all_gather_v lie in recv. */
int symmem_reduce_scatter_v(uint64_t group, size_t ranks, const int64_t *counts,
                            const int64_t *offsets, int type, int op, const void *send, void *recv,
                            uint64_t stream);

/* Reduces count elements of every rank's send into the root's recv. All ranks pass a recv buffer,
 * but only that of the root is written. */
int symmem_reduce(uint64_t group, int64_t count, int type, int op, int root, int path,
                  const void *send, void *recv, uint64_t stream);

/* Gathers count elements of every rank's send into the root's recv, which has count elements for
 * each rank. The others may pass a null recv. It registers no memory. */
int symmem_gather(uint64_t group, int64_t count, int type, int root, const void *send, void *recv,
                  uint64_t stream);

/* Writes to each rank's recv its part of the root's send, which has count elements for each rank.
 * The others may pass a null send. It registers no memory. */
int symmem_scatter(uint64_t group, int64_t count, int type, int root, const void *send, void *recv,
                   uint64_t stream);

/* Sends a message to a rank of the group. The k-th symmem_send of a pair of ranks with a tag
 * matches the k-th symmem_recv with that tag, in the order of calls on each rank, independent of
 * streams. Tags are from 0 to 2^31 - 1. Two ranks can send to each other at the same time, at any
 * size: if the receiver is not ready, the rest of the message is copied and the sender's stream
 * continues. Messages and collectives may be mixed freely, unless symmem_open has set
 * "ordered_messages". Messages that are unmatched when a group closes, and ends of different
 * sizes, are SYMMEM_ERR_DIVERGENCE.
 *
 * GPUs must belong to one machine. Waiting messages are stored in memory of the sender's GPU; if
 * there is not enough, the send returns SYMMEM_ERR_OUT_OF_MEMORY. */
int symmem_send(uint64_t group, int64_t count, int type, int peer, int tag, const void *send,
                uint64_t stream);

/* Receives a message from a rank of the group or, with SYMMEM_ANY_SOURCE, the first message with
 * the tag. *from, unless null, is set to the sender's rank, and must live until the stream has
 * done the work. */
int symmem_recv(uint64_t group, int64_t count, int type, int source, int tag, void *recv,
                int32_t *from, uint64_t stream);

/* How a norm quantizes its output. */
enum {
	SYMMEM_QUANT_NONE = 0,
	SYMMEM_QUANT_STATIC = 1,   /* with one given scale */
	SYMMEM_QUANT_PER_ROW = 2,  /* with a computed scale for each row */
	SYMMEM_QUANT_PER_GROUP = 3 /* with a computed scale for each 128 elements of a row */
};

/* The arguments of symmem_norm and symmem_scattered_norm. Each rank normalizes `rows` rows, the
 * same number on all ranks. input has these rows or, for symmem_scattered_norm, those of all ranks
 * in order. residual, output and quantized have rows * hidden elements, and weight has hidden.
 * output may be the rows of input that the rank normalizes; other tensors must not overlap. If
 * quant is set, output may be null, and the call may then overwrite the rank's rows of input.
 * Addresses are multiples of 16, that of scales a multiple of 4. */
struct symmem_norm {
	size_t size; /* sizeof(struct symmem_norm): later versions of this header append fields */
	int64_t rows, hidden; /* hidden is a multiple of 8 up to 16384 */
	int32_t type;         /* of the tensors: SYMMEM_BFLOAT16 or SYMMEM_FLOAT16 */
	int32_t quant;        /* SYMMEM_QUANT_NONE to SYMMEM_QUANT_PER_GROUP */
	float epsilon;
	float weight_bias; /* added to each weight; 1 for Gemma */
	const void *input;
	void *residual; /* read and written */
	const void *weight;
	void *output;
	void *quantized; /* one byte per element: float8 e4m3 */
	void *scales;    /* float32 */
	int64_t scale_strides[2]; /* elements between rows and groups; 0, 0: rows without gaps */
};

/* Fuses all-reduce, residual, RMSNorm and quantization:
 *   y = all-reduce of input; residual = y + residual;
 *   output = residual * (weight + weight_bias) / sqrt(mean(residual * residual) + epsilon)
 *   quantized = output / scale
 * The first three are rounded to type; the mean is over a row. A computed scale is the largest
 * magnitude of its elements, at least 1e-10, divided by 448. All ranks pass the same residual and
 * get the same bits. On GPUs, it requires the direct path and, for more than about 7 MiB of rows,
 * symmetric input and output. Otherwise all ranks get SYMMEM_ERR_UNSUPPORTED, and callers make the
 * steps separately. */
int symmem_norm(uint64_t group, const struct symmem_norm *norm, uint64_t stream);

/* Like symmem_norm, but with a reduce-scatter: rank r normalizes part r of input, and residual
 * differs between ranks. Results have the bits of symmem_norm's. Only input needs to be
 * symmetric. */
int symmem_scattered_norm(uint64_t group, const struct symmem_norm *norm, uint64_t stream);

/* Does the same as symmem_norm for bfloat16 without quantization. */
int symmem_all_reduce_rms_norm(uint64_t group, int64_t rows, int64_t hidden, float epsilon,
                               const void *input, void *residual, const void *weight, void *output,
                               uint64_t stream);

/* The arguments of symmem_dispatch and symmem_combine. Each rank owns a contiguous range of
 * experts, of equal size or, for the first ranks, one expert more. The fields up to type are the
 * same on all ranks. Rows have a multiple of 16 bytes. The addresses of send and recv are multiples
 * of 16, and the others of 4. */
struct symmem_route {
	size_t size; /* sizeof(struct symmem_route): later versions of this header append fields */
	int32_t experts, top_k; /* at most 512, and at most 16 for each token */
	int64_t max_tokens;     /* of a rank, at most 32768 */
	int64_t hidden, scales; /* elements of a row, and float32 scales of a row */
	int32_t type;           /* of the rows of symmem_dispatch; SYMMEM_UINT8 for 8-bit floats */
	int32_t unused;
	int64_t tokens;     /* of this rank */
	const void *ids;    /* int32: top_k for each token; -1 means no expert */
	const void *weights, *row_scales; /* float32: top_k and scales for each token */
	const void *send;
	void *recv;
};

/* Offsets in the memory that symmem_dispatch writes. Rows, scales, weights and ids have max_tokens
 * places for each rank. The rows of a rank fill its first places, in the order of its tokens.
 * ids of the other places are -1. counts has int32 values: the number of rows from each rank, and
 * then the number of this rank's ids other than -1 that belong to no expert. */
struct symmem_route_layout {
	int64_t rows, scales, weights, ids, counts, bytes;
};

/* Computes the layout for a number of ranks. */
int symmem_route_layout(const struct symmem_route *route, int ranks,
                        struct symmem_route_layout *layout);

/* Sends the row, ids, weights and scales of each token once to every rank that owns one of its
 * experts. send has tokens rows; recv has the size of the layout. Ids of experts on other ranks
 * arrive as -1. On GPUs, the group must have the direct path. If max_tokens is above 512 or recv
 * has more than about 14 MiB, recv must be symmetric. Otherwise all ranks get
 * SYMMEM_ERR_UNSUPPORTED. After a fault on a GPU, each id is valid or -1. */
int symmem_dispatch(uint64_t group, const struct symmem_route *route, uint64_t stream);

/* Returns rows of bfloat16 and adds them up for each token, in the order of ranks: in float32, and
 * rounded once. send has the computed rows at the places of the dispatched ones. On GPUs it must be
 * symmetric under the conditions for recv of symmem_dispatch. recv has tokens rows. ids are those
 * of symmem_dispatch. A token without experts gets 0. */
int symmem_combine(uint64_t group, const struct symmem_route *route, uint64_t stream);

/* The arguments of symmem_permute and symmem_unpermute. The fields up to type are those of the
 * dispatch. Addresses are multiples of 16. */
struct symmem_permute {
	size_t size; /* sizeof(struct symmem_permute): later versions of this header append fields */
	int32_t experts, top_k;
	int64_t max_tokens, hidden, scales;
	int32_t type;
	int32_t unused;
	int64_t align; /* the first row of each expert is a multiple of it, at most 4096; 0 means 128 */
	const void *dispatched; /* what symmem_dispatch has written */
	void *permuted;         /* the output of symmem_permute */
	const void *computed;   /* bfloat16: the rows that experts computed, at the permuted places */
	void *returned;         /* bfloat16: max_tokens rows for each rank, as symmem_combine sends them */
};

/* Offsets in the memory that symmem_permute writes, and its capacity in rows, which suffices for
 * any ids. rows, scales, weights and experts have an entry for each row. experts has the number of
 * the row's expert among those of this rank, or -1 for rows without one, whose other entries are
 * not written. places has the row of each dispatched id, or -1. firsts has the first row of each
 * expert, and then the end of the last one; counts has the number of rows of each. Both are sized
 * for the rank with the most experts. received has the number of dispatched rows from each
 * rank. Numbers are int32, and weights are float32. */
struct symmem_permute_layout {
	int64_t rows, scales, weights, experts, places, firsts, counts, received, bytes, capacity;
};

/* Computes the layout for a number of ranks. */
int symmem_permute_layout(const struct symmem_permute *permute, int ranks,
                          struct symmem_permute_layout *layout);

/* Copies each dispatched row once for each of its experts on this rank, so that the rows of an
 * expert are adjacent: in the order of ranks, places and ids. It uses only the memory of this rank,
 * and does not wait for others. */
int symmem_permute(uint64_t group, const struct symmem_permute *permute, uint64_t stream);

/* Multiplies each computed row by its weight, and writes the sum for each dispatched row to its
 * place in returned. Rows are added in the order of the ids, in float32, and rounded once. Other
 * places are not written. It uses only the memory of this rank. */
int symmem_unpermute(uint64_t group, const struct symmem_permute *permute, uint64_t stream);

/* Waits on the stream for all ranks of the group: a collective without data. */
int symmem_barrier(uint64_t group, uint64_t stream);

/* Waits until the stream is idle and returns the first error of its work. The ranks of a domain
 * must synchronize at the same points of the program. Not for captured streams. */
int symmem_stream_synchronize(uint64_t stream);

/* Forgets a stream that is about to be destroyed. It waits for the stream's work. */
int symmem_stream_forget(uint64_t stream);

/* Sets whether the caller has waited for the device (not 0). If so, the next symmem_trim and
 * symmem_close do not query streams, so streams may have been destroyed without
 * symmem_stream_forget. */
int symmem_streams_idle(int yes);

/* Records an event after the work queued on the stream so far. symmem_event_close and symmem_close
 * free it. Not for captured streams. */
int symmem_event_record(uint64_t stream, uint64_t *event);

/* Returns 1 if the work before the event is done, or if the event was closed, else 0; 0 in forked
 * children. It does not wait. */
int symmem_event_done(uint64_t event);

/* Waits until the work before the event is done, and returns its first error. */
int symmem_event_synchronize(uint64_t event);

/* Waits as symmem_event_synchronize does, but at most for a time in milliseconds. Then it returns
 * SYMMEM_ERR_TIMEOUT. The work continues, and its group does not fail. */
int symmem_event_wait(uint64_t event, int64_t timeout_ms);

/* Closes an event. Streams that wait for it keep waiting. */
int symmem_event_close(uint64_t event);

/* Makes later work of the stream wait for an event of any stream. The caller does not wait. */
int symmem_stream_wait(uint64_t stream, uint64_t event);

/* ---- SGLang's allocator -------------------------------------------------------------------- */

/* The functions that SGLang's pynccl_allocator.py (since sglang #21392) loads, so that it can use
 * this library unchanged. If symmem is not open, the first allocation opens it as a job of one
 * rank on the given device. Ranks are then only connected by the communicators, and registration
 * first compares the histories through them.
 *
 * nccl_alloc_plug and nccl_free_plug work as symmem_torch_alloc and symmem_torch_free.
 * nccl_allocator_register_segments_with_comm registers new memory with a communicator, in the
 * order in which it was mapped. It returns 0, or an ncclResult_t; it prints each error to stderr
 * once. It is collective over the communicator if there is new memory. During a capture it
 * registers nothing and returns 0, with a warning on stderr if there is new memory: collectives
 * on it take a path without windows in that graph, and the next call registers it. */
void *nccl_alloc_plug(size_t size, int device, void *stream);
void nccl_free_plug(void *ptr, size_t size, int device, void *stream);
int nccl_allocator_register_segments_with_comm(uintptr_t comm);

/* Forgets a communicator of nccl_allocator_register_segments_with_comm that was destroyed. The call
 * is only required if a later communicator may have the same address. */
int symmem_plug_forget(uintptr_t comm);

#ifdef __cplusplus
}
#endif
#endif
