package cuda

import (
	"sync"

	"symmem/internal/dl"
)

// HostFunc identifies a Go function that streams can run on the host. It is invalid after
// Release.
type HostFunc uintptr

// hosts maps HostFuncs to Go functions. The process has only one table and one callback, because
// a callback for C can never be freed.
var hosts struct {
	mu   sync.Mutex
	work map[HostFunc]hostWork // guarded by mu
	last HostFunc              // guarded by mu
}

type hostWork struct {
	run  func()
	once bool
}

// runHost returns the address of the callback that CUDA calls on one of its threads.
var runHost = sync.OnceValue(func() uintptr {
	return dl.Callback(func(number uintptr) {
		if run := takeHost(HostFunc(number)); run != nil {
			run()
		}
	})
})

func takeHost(h HostFunc) func() {
	hosts.mu.Lock()
	defer hosts.mu.Unlock()
	w := hosts.work[h]
	if w.once {
		delete(hosts.work, h)
	}
	return w.run
}

// NewHostFunc returns a HostFunc that can run any number of times, for example in each launch of a
// graph. The caller must release it once no stream or graph uses it any more.
//
// The function runs on a CUDA thread while the stream waits for it. It must not call CUDA or NCCL,
// must not wait for a thread that does, and must not panic.
func NewHostFunc(work func()) HostFunc { return keepHost(hostWork{work, false}) }

// NewHostFuncOnce returns a HostFunc that is released when it runs. If it never runs, the caller
// must release it. This happens if LaunchHostFunc returns an error or if earlier work on the
// stream fails.
func NewHostFuncOnce(work func()) HostFunc { return keepHost(hostWork{work, true}) }

func keepHost(w hostWork) HostFunc {
	hosts.mu.Lock()
	defer hosts.mu.Unlock()
	if hosts.work == nil {
		hosts.work = map[HostFunc]hostWork{}
	}
	hosts.last++
	hosts.work[hosts.last] = w
	return hosts.last
}

// Release frees the function. If a stream reaches the HostFunc afterwards, it calls nothing.
func (h HostFunc) Release() {
	hosts.mu.Lock()
	defer hosts.mu.Unlock()
	delete(hosts.work, h)
}
