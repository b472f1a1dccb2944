package cuda

import (
	"sync"

	"symmem/internal/dl"
)

// HostFunc is work of the host that streams can run, by its number. States: made, then released,
// after which the number may be another one's.
type HostFunc uintptr

// hosts is the table of the work that streams may run. There is one for the process, because a
// callback that C can call is never given back.
var hosts struct {
	mu   sync.Mutex
	work map[HostFunc]hostWork // guarded by mu
	last HostFunc              // guarded by mu
}

type hostWork struct {
	run  func()
	once bool
}

// runHost is what CUDA calls, on a thread of its own.
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

// NewHostFunc makes work that streams can run any number of times, as captured work does at each
// launch of its graph. It is released when no stream and no graph has it any more.
//
// The work runs on a thread of CUDA, while the stream waits for it; it must not call into CUDA or
// NCCL, must not wait for what does, and must not panic.
func NewHostFunc(work func()) HostFunc { return keepHost(hostWork{work, false}) }

// NewHostFuncOnce makes work that releases itself when it runs. If LaunchHostFunc refuses it, or
// the stream fails before it (CUDA then leaves it out), it is released by Release.
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

// Release forgets the work. A stream that still comes to it does nothing there.
func (h HostFunc) Release() {
	hosts.mu.Lock()
	defer hosts.mu.Unlock()
	delete(hosts.work, h)
}
