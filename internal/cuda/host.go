package cuda

import (
	"sync"

	"symmem/internal/dl"
)

// HostFunc identifies a Go function that streams can call, until Release.
type HostFunc uintptr

// All HostFuncs use one C callback, because callbacks can never be freed.
var hostFuncs struct {
	mu   sync.Mutex
	work map[HostFunc]hostWork // guarded by mu
	last HostFunc              // guarded by mu
}

type hostWork struct {
	run  func()
	once bool
}

// hostCallback returns the address of the function that CUDA calls on one of its threads.
var hostCallback = sync.OnceValue(func() uintptr {
	return dl.Callback(func(number uintptr) {
		if run := lookUpHost(HostFunc(number)); run != nil {
			run()
		}
	})
})

func lookUpHost(h HostFunc) func() {
	hostFuncs.mu.Lock()
	defer hostFuncs.mu.Unlock()
	w := hostFuncs.work[h]
	if w.once {
		delete(hostFuncs.work, h)
	}

	return w.run
}

// NewHostFunc returns a HostFunc that can run any number of times. The caller must release it once
// nothing uses it any more.
//
// The function runs on a CUDA thread while the stream waits for it. It must not call CUDA or NCCL,
// must not wait for a thread that does, and must not panic.
func NewHostFunc(work func()) HostFunc { return addHost(hostWork{work, false}) }

// NewHostFuncOnce returns a HostFunc that is released when it runs. If it never runs, for example
// because earlier work on the stream fails, the caller must release it.
func NewHostFuncOnce(work func()) HostFunc { return addHost(hostWork{work, true}) }

func addHost(w hostWork) HostFunc {
	hostFuncs.mu.Lock()
	defer hostFuncs.mu.Unlock()
	if hostFuncs.work == nil {
		hostFuncs.work = map[HostFunc]hostWork{}
	}

	hostFuncs.last++
	hostFuncs.work[hostFuncs.last] = w
	return hostFuncs.last
}

// Release frees the function. A stream that reaches h afterwards calls nothing.
func (h HostFunc) Release() {
	hostFuncs.mu.Lock()
	defer hostFuncs.mu.Unlock()
	delete(hostFuncs.work, h)
}
