/* Go in a foreign process: forks, threads, signals, and the end. */
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "drive.h"

void forks(void) {
	uint64_t world = open_with("{}");
	void *at;
	DO(symmem_alloc(0, 4096, 0, &at));
	for (int i = 0; i < 3; i++) {
		pid_t child = fork();
		if (child == 0) {
			in_child(world, at);
			exit(i); /* with exit handlers, as Python ends */
		}
		int status;
		TRUE(waitpid(child, &status, 0) == child);
		TRUE(WIFEXITED(status) && WEXITSTATUS(status) == i);
		DO(symmem_barrier(world, 0)); /* the parent goes on */
		DO(symmem_stream_synchronize(0));
	}
	DO(symmem_free(at));
	DO(symmem_close(0));
}

/* Rank 1 ends as if killed while a child of fork lives, which the reader of standard input ends.
 * The ranks are started without a launcher, which would tell that rank 1 has ended. */
void left_child(void) {
	char options[256];
	snprintf(options, sizeof options,
	         "{\"rank\": %d, \"size\": %d, \"store\": \"%s\", \"timeout_ms\": 3600000}", rank, size,
	         getenv("DRIVE_STORE"));
	uint64_t world = open_with(options);
	DO(symmem_barrier(world, 0));
	DO(symmem_stream_synchronize(0));
	if (rank == 1) {
		if (fork() == 0) {
			char c;
			while (read(0, &c, 1) > 0) {
			}
			_exit(0);
		}
		_exit(0);
	}
	DO(symmem_close(1));
}

static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
static sem_t holding; /* raised once it is held */

static void *allocate_holding(void *p) {
	(void)p;
	const volatile int64_t *words = symmem_generation();
	TRUE(!pthread_mutex_lock(&own));
	TRUE(!sem_post(&holding));
	for (int i = 0; i < 4; i++) {
		size_t bytes = (size_t)64 << (20 + i);
		int64_t before = words[SYMMEM_WORD_PENDING];
		void *at = symmem_torch_alloc(bytes, 0, NULL);
		TRUE(at && words[SYMMEM_WORD_PENDING] > before); /* each maps a segment */
		symmem_torch_free(at, bytes, 0, NULL);
	}
	TRUE(!pthread_mutex_unlock(&own));
	return NULL;
}

/* PyTorch allocates with its allocator's lock held, which other threads want meanwhile. The other
 * ranks do nothing at all. */
void locked(void) {
	uint64_t world = open_with("{}");
	static int64_t mine, first;
	mine = getpid();
	DO(symmem_broadcast(world, 1, SYMMEM_INT64, 0, 0, &mine, &first, 0));
	DO(symmem_stream_synchronize(0));
	if (rank > 0) {
		while (kill((pid_t)first, 0) == 0) usleep(1000);
		return;
	}
	pthread_t thread;
	TRUE(!sem_init(&holding, 0, 0));
	TRUE(!pthread_create(&thread, NULL, allocate_holding, NULL));
	TRUE(!sem_wait(&holding));
	TRUE(!pthread_mutex_lock(&own));
	TRUE(!pthread_join(thread, NULL));
	DO(symmem_close(0));
}

enum { THREADS = 8, ROUNDS = 300 };

static void *allocate(void *p) {
	char name[32], text[256];
	int number = (int)(intptr_t)p;
	snprintf(name, sizeof name, "thread.py:%d", number);
	uint32_t site;
	DO(symmem_site(strlen(name), name, &site));
	TRUE(symmem_set_site(site) == 0);
	TRUE(symmem_select(-1) == 0); /* ranks need not agree on what threads race for */
	for (int i = 0; i < ROUNDS; i++) {
		unsigned char *at = symmem_torch_alloc(1 << 16, 0, NULL);
		TRUE(at);
		memset(at, number, 1 << 16);
		for (int j = 0; j < 1 << 16; j += 4096) TRUE(at[j] == number);
		symmem_torch_free(at, 1 << 16, 0, NULL);
		WANT(SYMMEM_ERR_SIZE, symmem_alloc(0, 0, 0, (void **)&at));
		TRUE(symmem_last_error(sizeof text, text, NULL) == SYMMEM_ERR_SIZE);
	}
	return NULL;
}

void threads(void) {
	uint64_t world = open_with("{}");
	pthread_t all[THREADS];
	for (int round = 0; round < 3; round++) {
		for (intptr_t i = 0; i < THREADS; i++) TRUE(!pthread_create(&all[i], NULL, allocate, (void *)i));
		for (int i = 0; i < THREADS; i++) TRUE(!pthread_join(all[i], NULL));
	}
	TRUE(symmem_last_error(0, NULL, NULL) == SYMMEM_OK); /* errors are the threads' own */
	DO(symmem_barrier(world, 0));
	DO(symmem_check(world));
	DO(symmem_close(0));
}

static volatile sig_atomic_t interrupts, ticks;

static void on_interrupt(int s) {
	(void)s;
	interrupts++;
}

static void on_tick(int s) {
	(void)s;
	ticks++;
}

void signals(void) {
	struct sigaction interrupt = {.sa_handler = on_interrupt, .sa_flags = SA_ONSTACK};
	struct sigaction tick = {.sa_handler = on_tick, .sa_flags = SA_ONSTACK | SA_RESTART};
	TRUE(!sigaction(SIGINT, &interrupt, NULL));
	uint64_t world = open_with("{}");
	TRUE(!sigaction(SIGPROF, &tick, NULL));
	struct itimerval every = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
	TRUE(!setitimer(ITIMER_PROF, &every, NULL));
	static double in[4096], out[4096];
	for (int i = 0; i < 4096; i++) in[i] = 1;
	/* A fixed number of rounds, since ranks stay in step; the storm comes with processor time. */
	for (int i = 0; i < 3000; i++) {
		DO(symmem_all_reduce(world, 4096, SYMMEM_FLOAT64, SYMMEM_SUM, 0, in, out, 0));
		DO(symmem_stream_synchronize(0));
		TRUE(out[4095] == size);
		if (i % 1000 == 0) TRUE(!raise(SIGINT));
	}
	for (volatile long busy = 0; ticks == 0; busy++) continue;
	TRUE(!setitimer(ITIMER_PROF, &never, NULL));
	TRUE(!kill(getpid(), SIGINT));
	while (interrupts < 4) usleep(100);
	TRUE(interrupts == 4 && ticks > 0);
	struct sigaction now;
	TRUE(!sigaction(SIGINT, NULL, &now) && now.sa_handler == on_interrupt);
	DO(symmem_close(0));
}

/* tensors stands for static objects that free their memory when the process exits. */
static void *tensors[4];

static void drop_tensors(void) {
	for (int i = 0; i < 4; i++) symmem_torch_free(tensors[i], 2 << 20, 0, NULL);
}

void exit_live(void) {
	atexit(drop_tensors);
	uint64_t world = open_with("{}");
	for (int i = 0; i < 4; i++) TRUE(tensors[i] = symmem_torch_alloc(2 << 20, 0, NULL));
	DO(symmem_scope_end(world, 0, NULL));
	DO(symmem_barrier(world, 0));
	DO(symmem_stream_synchronize(0));
}

static uint64_t waiting_world;
static volatile int about_to_wait;

static void *wait_for_ever(void *p) {
	(void)p;
	about_to_wait = 1;
	(void)symmem_check(waiting_world);
	return NULL;
}

void exit_waiting(void) {
	waiting_world = open_with("{}");
	static int64_t mine, first;
	mine = getpid();
	DO(symmem_broadcast(waiting_world, 1, SYMMEM_INT64, 0, 0, &mine, &first, 0));
	DO(symmem_stream_synchronize(0));
	if (rank == 0) {
		pthread_t thread;
		TRUE(!pthread_create(&thread, NULL, wait_for_ever, NULL));
		while (!about_to_wait) usleep(100);
		return; /* main returns, and the process exits, while the thread waits */
	}
	while (kill((pid_t)first, 0) == 0) usleep(1000);
	/* Whether rank 0 had come to the comparison is chance; that it ends without a hang is not. */
	int code = symmem_check(waiting_world);
	TRUE(code == SYMMEM_OK || code == SYMMEM_ERR_RANK_LOST);
	WANT(SYMMEM_ERR_RANK_LOST, symmem_check(waiting_world));
}
