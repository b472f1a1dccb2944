/*
 * symmem.h is the C interface of libsymmem.so: symmetric GPU memory for collectives.
 *
 * A process is one rank. It opens symmem once, joins groups of ranks, allocates memory that lies
 * at the same place on every rank, registers it at the ends of scopes, and queues collectives on
 * CUDA streams of its own.
 *
 * Rules that hold for every function, unless it says otherwise:
 *
 *   Results    Functions that return int return SYMMEM_OK or one of the other codes below. What
 *              went wrong, and what to do, is in symmem_last_error of the same thread. Results are
 *              written through pointers only if the function returns SYMMEM_OK.
 *   Sizes      stand before the pointers that they are about. They are in bytes, counts in
 *              elements. A negative or absurd one is an error, never undefined.
 *   Ownership  All memory that is passed in is the caller's; symmem keeps no pointer to it after
 *              the call, except the buffers of collectives, which stay the caller's and must live
 *              until the stream has done the work. Nothing that symmem returns must be freed.
 *   Text       comes in UTF-8. Text that goes in has a length and needs no zero at its end. Text
 *              that comes out goes into a buffer of the caller, of `size` bytes, and ends with a
 *              zero; *length is its length without the zero. If it does not fit the buffer gets
 *              what fits, *length still is the whole length, and the result is SYMMEM_ERR_SHORT.
 *              A size of 0 with a null pointer asks for the length.
 *   Handles    are numbers. 0 is none. A handle that was closed is refused with SYMMEM_ERR_CLOSED
 *              and its number is never used again.
 *   Threads    Any thread may call anything at any time, with any lock of its own held. Calls that
 *              are collective must come in the same order on every rank of their group.
 *   Waiting    Functions marked "collective" wait for other ranks, up to the timeout of
 *              symmem_open; no other function waits for another rank.
 *   Forks      In a child of fork() every function returns SYMMEM_ERR_FORKED, or null, and does
 *              nothing. The parent goes on. The child closes the sockets of symmem. Start workers
 *              by spawn or forkserver.
 *   Panics     A mistake inside symmem becomes SYMMEM_ERR_PANIC, with the place in the message.
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

/* The version of this interface. It grows when functions are added; nothing is renamed or removed
 * within one major version (the part above 1000). The header of a release also defines
 * SYMMEM_VERSION, the version of the release as text. */
#define SYMMEM_ABI_VERSION 1003

/* Codes. After each stands what makes it come and what the caller does about it. */
enum {
	SYMMEM_OK = 0,
	SYMMEM_ERR_INVALID = 1,       /* arguments that no state would make right: a mistake in the call */
	SYMMEM_ERR_CLOSED = 2,        /* the handle, or symmem itself, was closed */
	SYMMEM_ERR_UNSUPPORTED = 3,   /* the backend cannot do this */
	SYMMEM_ERR_OUT_OF_MEMORY = 4, /* neither the pool nor the device has the bytes */
	SYMMEM_ERR_SIZE = 5,          /* a size that is not positive, or absurd */
	SYMMEM_ERR_DOUBLE_FREE = 6,   /* the pointer was freed before */
	SYMMEM_ERR_FREED = 7,         /* memory of a buffer that was freed, or of a closed pool */
	SYMMEM_ERR_FOREIGN = 8,       /* a pointer that symmem did not hand out */
	SYMMEM_ERR_CAPTURING = 9,     /* not while a stream is captured; the capture is still good */
	SYMMEM_ERR_OUT_OF_RANGE = 10, /* a buffer is too short for the call; nothing was launched */
	SYMMEM_ERR_ABORTED = 11,      /* some rank called symmem_group_abort */
	SYMMEM_ERR_DIVERGENCE = 12,   /* ranks differ; the detail names the first difference */
	SYMMEM_ERR_TIMEOUT = 13,      /* ranks did not come in time; the detail names them */
	SYMMEM_ERR_RANK_LOST = 14,    /* processes of ranks have ended; the detail names them */
	SYMMEM_ERR_FORKED = 15,       /* this process is a child of fork() */
	SYMMEM_ERR_NOT_OPEN = 16,     /* symmem_open comes first */
	SYMMEM_ERR_LIVE = 17,         /* buffers are live still: free them, or force */
	SYMMEM_ERR_SHORT = 18,        /* the text did not fit */
	SYMMEM_ERR_PANIC = 19,        /* a mistake inside symmem: report it, with the message */
	SYMMEM_ERR_FAILED = 20,       /* a library or the system failed; the message has its words */
	SYMMEM_ERR_INTERRUPTED = 21   /* the function of symmem_set_poll has ended the wait */
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
	SYMMEM_UINT8 = 7
};

/* Reductions. */
enum { SYMMEM_SUM = 0, SYMMEM_PROD = 1, SYMMEM_MIN = 2, SYMMEM_MAX = 3, SYMMEM_AVG = 4 };

/* Operations, for symmem_collective and symmem_explain. */
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
	SYMMEM_ALL_TO_ALL_V = 9 /* for symmem_explain; symmem_all_to_all_v makes the call */
};

/* The source of symmem_recv that takes from whichever rank sends first. */
enum { SYMMEM_ANY_SOURCE = -1 };

/* What symmem_value makes of the numbers of all ranks. */
enum {
	SYMMEM_VALUE_AGREE = 1, /* compares them; the result is the number */
	SYMMEM_VALUE_ANY = 2,   /* 1 if one is not 0, else 0 */
	SYMMEM_VALUE_ALL = 3,   /* 1 if none is 0, else 0 */
	SYMMEM_VALUE_MIN = 4,   /* the least */
	SYMMEM_VALUE_MAX = 5,   /* the greatest */
	SYMMEM_VALUE_SUM = 6,   /* their sum, which wraps around */
	SYMMEM_VALUE_AGREE_FLOAT = 8 /* compares the bits of a double; all NaNs are equal */
};

/* Who chooses the path of a collective. */
enum {
	SYMMEM_PATH_DEFAULT = 0, /* what the group is set to; a group starts with that of symmem_open */
	SYMMEM_PATH_AUTO = 1,    /* the tuning table */
	SYMMEM_PATH_PLAIN = 2,   /* plain, always */
	SYMMEM_PATH_WINDOW = 3,  /* window, wherever both buffers lie in windows */
	SYMMEM_PATH_DIRECT = 4   /* symmem's own kernels, wherever they can do it */
};

/* How much ranks compare. */
enum {
	SYMMEM_CHECK_DEFAULT = 0,
	SYMMEM_CHECK_OFF = 1,          /* nothing: ranks that differ compute wrong results silently */
	SYMMEM_CHECK_REGISTRATION = 2, /* histories, at registrations, at symmem_check, and now and then */
	SYMMEM_CHECK_EVERY = 3         /* also every collective, before its result is used */
};

/* ---- The library ------------------------------------------------------------------------- */

/* The version of the interface that the library has: SYMMEM_ABI_VERSION of its build. It works
 * before symmem_open and in forked children, and enters no Go code. */
uint32_t symmem_abi_version(void);

/* The latest error of this thread, for people: one line. Returns its code; SYMMEM_OK with an empty
 * text if no call of this thread has failed yet. A call that succeeds does not clear it. The length
 * may be null. The text is cut to the size, without an error. It works in forked children. */
int symmem_last_error(size_t size, char *text, size_t *length);

/* The latest error of this thread as JSON: {"code", "name", "message"} and, where known, what
 * follows. Ranks are those of the world; "members" lists the ranks of the group in its order.
 *   divergence: {"group", "members": [ranks], "kind", "pool", "pool_name", "position", "last",
 *                "deviant": [ranks], "absent": [ranks], "why",
 *                "variants": [{"ranks": [..], "event": text, "site": "file:line"|""}]}
 *               and "elsewhere": {"rank": text} where ranks wait for each other in different places
 *   timeout:    {"doing", "waited_ms", "missing": [ranks], "activity": {"rank": text},
 *               "counts": text}
 *               and "absent": true where they have not come to make a group
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
 *   store          "host:port" or "unix:@name", where rank 0 serves the store. To join one that
 *                  somebody serves, such as a TCPStore of PyTorch, leave this out and give its
 *                  "host:port" as SYMMEM_STORE in the environment
 *   token          keeps strangers out of the store; "host:port" needs one
 *   backend        "auto", "host" or "nccl"
 *   tuning         file of a tuning table, or "built-in"
 *   path           "auto", "plain", "window" or "direct"
 *   deterministic  "ranks", "tree" or "rounded-tree": every reduction gives the bits of that
 *                  formula (docs/reference/deterministic.md), or is SYMMEM_ERR_UNSUPPORTED; "any":
 *                  none. The default is SYMMEM_DETERMINISTIC, else "any"
 *   check          "off", "registration" or "every"
 *   check_interval_ms   how often registration compares in the background; negative: never
 *   timeout_ms     bounds every wait for other ranks; 30000
 *   warn_after_ms  how long this rank waits for others that live before it warns of them by name,
 *                  and for every 2 * warn_after_ms after that; 30000; negative: never
 *   ordered_messages  true numbers messages (symmem_send) together with collectives: one that is
 *                  sent between other collectives than it is received between is an error, and a
 *                  forgotten one is found at the next collective; default: false
 *   callsites      true notes a call site with every allocation; default: whether SYMMEM_CALLSITES
 *                  is true or a number above 0
 *   scatter        number; segments land at drawn addresses, which shows mistakes
 *   gomaxprocs     threads that symmem's own work may use at a time; SYMMEM_GOMAXPROCS, else 2
 *   pool           {"capacity", "first_segment"} in bytes and {"placement": "creation"|"address"}
 *                  of pool 0, whose domain is the world
 *   environment    {"NAME": "value"}: variables that the process has set since the library was
 *                  loaded. Variables that C's environment has need not be repeated here.
 *
 * One rank can be open at a time: a second symmem_open is SYMMEM_ERR_INVALID, but after
 * symmem_close it can be opened again. It must not be called while a stream is captured. */
int symmem_open(size_t options_length, const char *options);

/* Closes this rank: leaves all groups and gives all memory back. It waits for work that is queued
 * and, on the rank that serves the store, for the others to close or end, up to the timeout of
 * symmem_open; with force for a second at most. With live buffers it is SYMMEM_ERR_LIVE and does
 * nothing, unless force is not 0: then no rank reaches them any more, but their memory stays
 * mapped, for this process to read and write, until symmem_free has freed the last buffer of a
 * segment, which it does after the close, too. Does nothing if symmem is not open.
 *
 * A process need not close before it exits. */
int symmem_close(int force);

/* 1 if symmem is open, else 0; 0 in forked children. */
int symmem_is_open(void);

/* Sets the functions that symmem calls while a call waits, ten times a second and on the thread
 * that waits: `poll` on the thread that calls this function, which is to be the main one, and
 * `aside` on all others. Either may be null, as both are at first. Not 0 ends the wait: the
 * function that waits returns SYMMEM_ERR_INTERRUPTED within a second. What it waited for is then as
 * after an error:
 *
 *   symmem_stream_synchronize   nothing has happened; the work goes on, and may be waited for again
 *   symmem_open                 symmem is not open
 *   symmem_close                groups are aborted, and symmem closes by itself
 *   everything else that is collective   the group has failed, on all its ranks, unless it was done
 *
 * The functions may call symmem, unless `poll` is called in the middle of a collective that is made
 * on the caller's own thread: then functions that wait or work on streams return SYMMEM_ERR_INVALID
 * in it. Calls that end at once ask nobody, and cost nothing more. It works before symmem_open. */
int symmem_set_poll(int (*poll)(void), int (*aside)(void));

/* Describes the open rank as JSON: {"rank", "size", "source", "backend", "device", "library",
 * "check", "granularity", "machines", "alone", "pid"}. */
int symmem_describe(size_t size, char *text, size_t *length);

/* The shared words: an array of SYMMEM_WORDS numbers that symmem changes and anybody reads, without
 * a call, aligned and whole. They only grow. The address is valid forever and in any thread; it is
 * never null. In forked children the words stand still.
 *
 *   [SYMMEM_WORD_PENDING]  changes whenever something may have to be registered: a segment was
 *                          mapped, a pool or a group was opened, a communicator was attached, or a
 *                          group has failed. The end of a scope compares it with the value that
 *                          symmem_scope_end has returned for the same group, and calls only if it
 *                          differs.
 *   [SYMMEM_WORD_WINDOWS]  changes whenever windows have come or gone: what symmem_windows and
 *                          symmem_is_symmetric have said may be out of date.
 *   [SYMMEM_WORD_FAULTS]   counts groups that have failed, each as soon as this rank has seen it:
 *                          within 50 ms of a kernel's report, also in a graph that is replayed
 *                          without a call of symmem.
 *   [SYMMEM_WORD_REFUSED]  counts calls that could not say so: frees that went wrong.
 *   [SYMMEM_WORD_WARNINGS] counts warnings, which symmem_take_warning gives. */
enum {
	SYMMEM_WORD_PENDING = 0,
	SYMMEM_WORD_WINDOWS = 1,
	SYMMEM_WORD_FAULTS = 2,
	SYMMEM_WORD_REFUSED = 3,
	SYMMEM_WORD_WARNINGS = 4,
	SYMMEM_WORDS = 5
};
const volatile int64_t *symmem_generation(void);

/* Takes the oldest warning that nobody has taken, as JSON; an empty text, of length 0, if there is
 * none. One that does not fit (SYMMEM_ERR_SHORT), or whose length is asked for, stays. Warnings
 * come while calls wait in other threads; the latest 64 are kept, also after symmem_close. Does
 * not wait.
 *   {"kind": "late", "message", "group", "doing", "waited_ms", "ranks": [ranks],
 *    "activity": {"rank": text}}: these ranks of the world live and keep this one waiting, which
 *   goes on waiting. */
int symmem_take_warning(size_t size, char *text, size_t *length);

/* ---- Groups -------------------------------------------------------------------------------- */

/* The group of all ranks. It is closed with the library. */
int symmem_world(uint64_t *group);

/* Opens a group of ranks: collective over them, and nobody else calls it. The ranks are numbers of
 * the world, in group order. The name is any text, the same on all of them and used for no group
 * with other ranks; a name can be used again after symmem_group_close on all its ranks. Groups that
 * share ranks are opened in the same order on these. */
int symmem_group_open(size_t name_length, const char *name, size_t count, const int32_t *ranks,
                      uint64_t *group);

/* Leaves a group: its windows are deregistered on this rank, and the communicators that are
 * attached to it are forgotten, as by symmem_detach(attachment, 0). CUDA graphs over it keep what
 * they use until they are gone, and end without a result when they are replayed. It waits for no
 * other rank. The world cannot be closed. */
int symmem_group_close(uint64_t group);

/* Describes a group as JSON: {"id", "name", "rank", "size", "ranks", "error": text or null}. */
int symmem_group_describe(uint64_t group, size_t size, char *text, size_t *length);

/* The fault that has ended the group: SYMMEM_OK while it is open, else the fault's code, and its
 * words as the last error. */
int symmem_group_error(uint64_t group);

/* Fails the group on all its ranks: calls that wait return SYMMEM_ERR_ABORTED. */
int symmem_group_abort(uint64_t group);

/* Sets who chooses the path of the group's collectives from now on (SYMMEM_PATH_...).
 * Collective. */
int symmem_group_set_path(uint64_t group, int path);

/* ---- Pools and allocation ------------------------------------------------------------------- */

/* The pools of a process are numbered from 0; pool 0 is made by symmem_open, with the world as its
 * domain. There are at most SYMMEM_POOLS at a time. */
enum { SYMMEM_POOLS = 16 };

/* Makes a pool whose domain is a group: its ranks promise to make the same requests of it in the
 * same order, and it can be registered with any group inside the domain. Every rank of the domain
 * makes its pools in the same order; it does not wait. The options are JSON, as "pool" of
 * symmem_open. *pool is the smallest number that is free. */
int symmem_pool_open(uint64_t domain, size_t options_length, const char *options, int *pool);

/* Closes a pool: deregisters and unmaps everything. Live buffers as in symmem_close. Pool 0 cannot
 * be closed. */
int symmem_pool_close(int pool, int force);

/* Allocates on a stream. The memory is aligned to 512 bytes at least; its contents are whatever was
 * there. It may map memory, but registers nothing and does not wait. The error codes are
 * SYMMEM_ERR_SIZE, SYMMEM_ERR_OUT_OF_MEMORY, SYMMEM_ERR_NOT_OPEN and SYMMEM_ERR_CLOSED. */
int symmem_alloc(int pool, size_t bytes, uint64_t stream, void **address);

/* Frees what symmem_alloc or an allocator function returned. Work that is queued on the stream of
 * the allocation may still use it; work on other streams must be done. */
int symmem_free(void *address);

/* For torch.cuda.memory.CUDAPluggableAllocator: allocate for pool 0 and free, for pools of PyTorch
 * (torch.cuda.MemPool). Null means failure, the reason is the thread's last error. The device is
 * the ordinal of the rank's own device; any other one fails.
 *
 * Sizes and device are not needed to free; a pointer that is not live is counted in the shared
 * words and ignored. Frees take effect at the next allocation, registration or comparison of the
 * pool, ordered by place, since PyTorch gives segments back in an order that depends on addresses.
 * After symmem_close, in forked children and while the process exits they do nothing. */
void *symmem_torch_alloc(size_t size, int device, void *stream);
void symmem_torch_free(void *ptr, size_t size, int device, void *stream);

/* The same for pool n, 0 to SYMMEM_POOLS - 1, whichever thread calls: symmem_torch_alloc_3 belongs
 * to pool 3. Memory of any pool may be freed by any of the free functions. */
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

/* Chooses the pool of symmem_torch_alloc and nccl_alloc_plug on this thread from now on, and
 * returns the one before, so that scopes nest. -1 makes them use memory of this rank's own, which
 * is never registered. Returns SYMMEM_SELECT_ERROR and changes nothing for a number that can be no
 * pool; whether there is one is seen by the allocation. Enters no Go code. */
#define SYMMEM_SELECT_ERROR (-2)
int symmem_select(int pool);

/* Makes and maps memory so that so many more bytes can be handed out on the default stream without
 * growing, and registers it with the group if that is not 0; then it is collective over the group.
 * Every rank of the pool's domain reserves alike. */
int symmem_reserve(int pool, size_t bytes, uint64_t group);

/* The same for a stream. No other stream gets any of that memory. */
int symmem_reserve_on(int pool, size_t bytes, uint64_t stream, uint64_t group);

/* Gives segments without live buffers back to the device, newest first, as long as at least `keep`
 * bytes stay mapped. Collective over the pool's domain. What CUDA graphs use stays until they are
 * gone. */
int symmem_trim(int pool, size_t keep);

/* ---- Registration --------------------------------------------------------------------------- */

/* Ends a scope of a group: registers with it, and with the communicators that are attached to it,
 * what is new in all pools whose domain holds the group. Collective if something is new, else it
 * asks nobody. The stream is the caller's current one: if it, or any other that symmem knows, is
 * captured and something is new, that is SYMMEM_ERR_CAPTURING. *seen gets the value of
 * SYMMEM_WORD_PENDING up to which the group has everything; it may be null.
 *
 * SYMMEM_ERR_DIVERGENCE, SYMMEM_ERR_TIMEOUT and SYMMEM_ERR_RANK_LOST come on every rank of the
 * group, and nothing is registered then. A scope that ends by an exception is not ended: what it
 * allocated is registered by the next end that all ranks reach. */
int symmem_scope_end(uint64_t group, uint64_t stream, int64_t *seen);

/* The same for one pool. */
int symmem_register_pending(uint64_t group, int pool, uint64_t stream);

/* Attaches a communicator of another library (an ncclComm_t) to the group: everything that the
 * group has as windows, and will have, is registered with it too, in the same order on all ranks.
 * Its ranks must be those of the group, in the same order. Collective over the group. The name is
 * any text that tells it from others that may have had the same address, such as the unique id in
 * hexadecimal; it must be the same on all ranks. No collective may be under way on the
 * communicator meanwhile. Attaching the same pointer and name again returns the same handle. */
int symmem_attach(uint64_t group, uint64_t comm, size_t name_length, const char *name,
                  uint64_t *attachment);

/* Detaches a communicator: its windows are deregistered on this rank, if alive is not 0. Pass 0
 * when it was destroyed or aborted already: then it is only forgotten. It does not wait. */
int symmem_detach(uint64_t attachment, int alive);

/* ---- Queries -------------------------------------------------------------------------------- */

/* 1 if the range lies in one window of the group, 0 if not, and 0 also for a group that is closed
 * or in a forked child. It takes no lock and asks nobody. */
int symmem_is_symmetric(uint64_t group, size_t bytes, const void *address);

/* Lists the windows of a group: pairs of address and bytes, in the order of addresses, so that a
 * caller can answer is_symmetric by itself while SYMMEM_WORD_WINDOWS stands. capacity counts pairs;
 * *count is the number of windows, of which the first `capacity` are written. */
int symmem_windows(uint64_t group, size_t capacity, int64_t *pairs, size_t *count);

/* Where an address lies: JSON {"pool", "segment", "offset", "bytes", "live", "address"}. segment
 * and offset are the same on every rank; bytes and address are those of the buffer that holds it,
 * or 0 and the segment's with "live" false. SYMMEM_ERR_FOREIGN if it is in no segment. */
int symmem_locate(const void *address, size_t size, char *text, size_t *length);

/* Says which path a collective would take now, and why: JSON {"operation", "path", "why",
 * "registers"}. It does nothing and asks nobody. */
int symmem_explain(uint64_t group, int operation, int64_t count, int type, const void *send,
                   const void *recv, size_t size, char *text, size_t *length);

/* Everything that is counted, as JSON: {"rank", "size", "backend", "check", "open",
 * "pools": [{"pool", "domain", "used", "requested", "high_water", "cached", "largest_free",
 *            "deferred", "pinned", "mapped", "segments", "windows", "events", "live"}],
 * "groups": {id: {"handle", "name", "windows", "registrations", "agreements",
 *            "paths": {...}, "tuning": {...},
 *            "attachments": [{"handle", "name", "windows"}]}},
 * "streams", "refused"}. Sizes are in bytes. */
int symmem_stats(size_t size, char *text, size_t *length);

/* ---- Comparison ------------------------------------------------------------------------------ */

/* Compares the histories of all pools whose domain holds the group, now. Collective. */
int symmem_check(uint64_t group);

/* Changes how much ranks compare (SYMMEM_CHECK_OFF to SYMMEM_CHECK_EVERY), for all groups.
 * Collective over the world. */
int symmem_set_check(int level);

/* The most bytes of a value's name. */
enum { SYMMEM_VALUE_NAME = 128 };

/* What is gathered and where: the same for many calls, so that a binding packs it once. */
struct symmem_value {
	uint64_t group;
	int32_t operation; /* SYMMEM_VALUE_AGREE to SYMMEM_VALUE_AGREE_FLOAT */
	uint32_t site;     /* the line that calls; that of symmem_set_site where it is 0 */
	size_t name_length;
	char name[SYMMEM_VALUE_NAME];
};

/* Gathers a number of every rank of the group under a name, on the host: no stream and no GPU takes
 * part. It waits for the n-th call under the name of every rank. *number is this rank's, and
 * becomes what the operation makes of all; SYMMEM_VALUE_AGREE and SYMMEM_VALUE_AGREE_FLOAT only
 * read it. These give SYMMEM_ERR_DIVERGENCE on all ranks where they differ, and so do others where
 * ranks make different ones; symmem_last_error_json has each rank's number, call site and last ten
 * numbers, and the group goes on. A rank that does not come is final for the group, as everywhere.
 *
 * Names have 1 to SYMMEM_VALUE_NAME bytes; a group has 256 at most. They do not wait for each
 * other, and calls under one name come one after the other; any thread may call. */
int symmem_value(const struct symmem_value *of, int64_t *number);

/* Compares a text of up to 1 MiB under a name, as SYMMEM_VALUE_AGREE compares a number. Errors
 * quote the beginning of each text. */
int symmem_agree_string(uint64_t group, size_t name_length, const char *name, size_t length,
                        const char *text, uint32_t site);

/* Compares which step of the program begins on each rank of the group, a text of 1 to 1024 bytes
 * such as "decode(batch=8)", and how many collectives of the group each rank has launched since its
 * step before; those in replays of graphs by other libraries are not known. Errors, and what they
 * are final for, are those of SYMMEM_VALUE_AGREE. Ranks launch collectives of the group between
 * steps alone. SYMMEM_STEP_GUARD=0 turns it off. */
int symmem_step(uint64_t group, size_t length, const char *what, uint32_t site);

/* Notes something that must be equal on all ranks in the history of a pool: the next comparison
 * that differs names it, with this thread's call site. The numbers are the caller's: a kind of its
 * own and a value, such as the bytes of a tensor. Does not wait. */
int symmem_note(int pool, int64_t kind, int64_t value);

/* Whether call sites are wanted: 1 if symmem is open with call sites on, else 0. */
int symmem_callsites(void);

/* Gives a call site, a text such as "model.py:120", a number that symmem_set_site takes. The same
 * text has the same number. At most 65,535 different ones are kept; *site is 0 after that. */
int symmem_site(size_t text_length, const char *text, uint32_t *site);

/* Sets the call site of what this thread does from now on, 0 for none, and returns the one before.
 * Enters no Go code. */
uint32_t symmem_set_site(uint32_t site);

/* ---- Collectives --------------------------------------------------------------------------- */

/* All collectives are queued on the stream and return; counts and meanings are NCCL's. In a
 * capture they become a part of it. They are called in the same order on every rank of the group.
 * A buffer that begins in a pool must lie in one piece of memory that the pool has handed out.
 *
 * Memory of a pool that is not registered with the group yet is registered first (collective),
 * except during a capture: then the call takes a path that needs no windows. The path is
 * SYMMEM_PATH_DEFAULT,
 * or SYMMEM_PATH_PLAIN, SYMMEM_PATH_WINDOW or SYMMEM_PATH_DIRECT for this call only, the same on
 * all ranks; SYMMEM_PATH_AUTO is as the default here.
 *
 * An error that comes after queueing is the result of the next call on the group, and of
 * symmem_stream_synchronize. */
int symmem_collective(uint64_t group, int operation, int64_t count, int type, int op, int root,
                      int path, const void *send, void *recv, uint64_t stream);

/* Combines count elements of every rank's send into every rank's recv. send may be recv. */
int symmem_all_reduce(uint64_t group, int64_t count, int type, int op, int path, const void *send,
                      void *recv, uint64_t stream);

/* Gathers count elements of every rank into recv, which has count for each rank. */
int symmem_all_gather(uint64_t group, int64_t count, int type, int path, const void *send,
                      void *recv, uint64_t stream);

/* Combines send, of count elements for each rank, and puts this rank's count into recv. */
int symmem_reduce_scatter(uint64_t group, int64_t count, int type, int op, int path,
                          const void *send, void *recv, uint64_t stream);

/* Copies count elements of the root's send into every rank's recv. Every rank gives a send. */
int symmem_broadcast(uint64_t group, int64_t count, int type, int root, int path, const void *send,
                     void *recv, uint64_t stream);

/* Sends count elements to each rank and gathers count of each. It is another operation than
 * symmem_all_to_all_v, also where all counts of that are equal: all ranks call the same one. */
int symmem_all_to_all(uint64_t group, int64_t count, int type, int path, const void *send,
                      void *recv, uint64_t stream);

/* Sends a part of send to each rank and gathers a part of each into recv. `ranks` is the size of
 * the group; part r of send, of send_counts[r] elements, begins at send_offsets[r] and goes to rank
 * r, and recv_counts[r] elements of rank r go to recv_offsets[r]. Null offsets are parts one behind
 * the other. Counts may be 0 and may differ, but what a rank sends to another is what that one
 * expects of it: else no buffer is written and, with SYMMEM_CHECK_EVERY, all ranks get
 * SYMMEM_ERR_DIVERGENCE, whose detail names the pairs. The lists are copied. send may be recv. It
 * is a collective that registers nothing. */
int symmem_all_to_all_v(uint64_t group, size_t ranks, const int64_t *send_counts,
                        const int64_t *send_offsets, const int64_t *recv_counts,
                        const int64_t *recv_offsets, int type, const void *send, void *recv,
                        uint64_t stream);

/* Messages between two ranks of a group. The k-th symmem_send of a pair with a tag belongs to the
 * k-th symmem_recv with it, in the order of calls on each rank, whatever the streams. Tags are from
 * 0 to 2^31 - 1. Both directions go at once, at any size: a send whose receiver is not there yet
 * copies what is left of the message, and its stream goes on. Messages and collectives may be mixed
 * freely, unless symmem_open was told "ordered_messages". What is unmatched when a group closes is
 * SYMMEM_ERR_DIVERGENCE, and so are two ends of different sizes.
 *
 * On GPUs, which need to be of one machine for that, a message waits in memory of the sender's GPU,
 * and a send that finds none is SYMMEM_ERR_OUT_OF_MEMORY. */
int symmem_send(uint64_t group, int64_t count, int type, int peer, int tag, const void *send,
                uint64_t stream);

/* Receives from a rank of the group or from SYMMEM_ANY_SOURCE: that takes the message with the tag
 * that arrives first. *from, if it is not null, gets the rank that has sent the message, and must
 * live until the stream has done the work. */
int symmem_recv(uint64_t group, int64_t count, int type, int source, int tag, void *recv,
                int32_t *from, uint64_t stream);

/* All-reduce, residual and RMSNorm of rows of bfloat16 on addresses of 16, in two kernels, the
 * second of which does what is left; measured faster than one:
 *   y = all-reduce of input; residual = y + residual;
 *   output = residual / sqrt(mean(residual * residual) + epsilon) * weight
 * each rounded to bfloat16, the mean over a row of `hidden` elements, a multiple of 8 up to 16384.
 * input, residual and output are rows * hidden elements, weight is hidden; output may be input,
 * nothing else overlaps. All ranks give the same residual, and get the same bits. It needs the
 * direct path and, for more than about 7 MiB of rows, an input and an output that are symmetric:
 * SYMMEM_ERR_UNSUPPORTED, on all ranks, where they are not; callers then do the three
 * steps. */
int symmem_all_reduce_rms_norm(uint64_t group, int64_t rows, int64_t hidden, float epsilon,
                               const void *input, void *residual, const void *weight, void *output,
                               uint64_t stream);

/* A collective without data. */
int symmem_barrier(uint64_t group, uint64_t stream);

/* Waits until the stream is idle and returns the first error of its work. Every rank of a domain
 * synchronizes in the same places. Not for streams that are captured. */
int symmem_stream_synchronize(uint64_t stream);

/* Forgets a stream that is about to be destroyed. Its work is done. */
int symmem_stream_forget(uint64_t stream);

/* Says whether the caller has waited for the device (not 0), for the symmem_trim and symmem_close
 * that follow: they ask about no stream then, so that some may have been destroyed without
 * symmem_stream_forget. */
int symmem_streams_idle(int yes);

/* Makes an event: the point after everything that was queued on the stream so far. It is freed by
 * symmem_event_close, and ends with symmem_close. Not for streams that are captured. */
int symmem_event_record(uint64_t stream, uint64_t *event);

/* 1 if the point has been reached, and for an event that is closed, else 0; 0 in forked children.
 * It does not wait. */
int symmem_event_done(uint64_t event);

/* Waits until the point has been reached. An error of the work before it is the result. */
int symmem_event_synchronize(uint64_t event);

/* Closes an event. What waits for its point goes on to wait. */
int symmem_event_close(uint64_t event);

/* Makes what is queued on the stream from now on wait for the point of an event of any stream. The
 * caller does not wait. */
int symmem_stream_wait(uint64_t stream, uint64_t event);

/* ---- SGLang's allocator -------------------------------------------------------------------- */

/* What SGLang's pynccl_allocator.py (since sglang #21392) loads from the library that it compiles,
 * so that it runs on this one unchanged. If symmem is not open, the first allocation opens it for
 * this process alone, on the device that is given: then nothing but the communicators joins the
 * ranks, and registration compares the histories through them before it registers.
 *
 * nccl_alloc_plug and nccl_free_plug are symmem_torch_alloc and symmem_torch_free.
 * nccl_allocator_register_segments_with_comm registers what a communicator has not got, in the
 * order in which it was mapped, and returns 0, or an ncclResult_t and says why on stderr. It is
 * collective over the communicator if something is new. During a capture it registers nothing and
 * returns 0, with a warning on stderr if there was something: that takes a path without windows in
 * the graph, and is registered by the next call. */
void *nccl_alloc_plug(size_t size, int device, void *stream);
void nccl_free_plug(void *ptr, size_t size, int device, void *stream);
int nccl_allocator_register_segments_with_comm(uintptr_t comm);

/* Forgets a communicator of nccl_allocator_register_segments_with_comm that is destroyed. It needs
 * to be called only where another one may come to lie at the same address. */
int symmem_plug_forget(uintptr_t comm);

#ifdef __cplusplus
}
#endif
#endif
