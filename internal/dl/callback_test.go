package dl_test

import (
	"slices"
	"sync"
	"testing"

	"symmem/internal/dl"
	"symmem/internal/dl/dltest"
)

func TestCallbackRunsOnThreadsOfC(t *testing.T) {
	path := dltest.Compile(t, "libthreads.so", `
#include <pthread.h>
struct job { void (*call)(void *); void *argument; };
static void *run(void *p) { struct job *j = p; j->call(j->argument); return 0; }
int on_threads(int n, void (*call)(void *)) {
	pthread_t threads[64];
	struct job jobs[64];
	for (int i = 0; i < n; i++) {
		jobs[i] = (struct job){call, (void *)(long)(i + 1)};
		if (pthread_create(&threads[i], 0, run, &jobs[i])) return 1;
	}
	for (int i = 0; i < n; i++) pthread_join(threads[i], 0);
	return 0;
}`)
	library, err := dl.Open(path)
	if err != nil {
		t.Fatal(err)
	}

	onThreads, _ := library.Find("on_threads")
	var mu sync.Mutex
	var got []int
	callback := dl.Callback(func(argument uintptr) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, int(argument))
	})
	if onThreads.Call(8, callback) != 0 {
		t.Fatal("the threads did not start")
	}

	slices.Sort(got)
	if !slices.Equal(got, []int{1, 2, 3, 4, 5, 6, 7, 8}) {
		t.Errorf("the callback got arguments %v, want 1 to 8", got)
	}
}
