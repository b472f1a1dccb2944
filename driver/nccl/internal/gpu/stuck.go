package gpu

import (
	"sync/atomic"
	"time"
)

// KernelEndTimeout limits the wait for a kernel after it was asked to exit. Tests raise it on the
// software GPU, which is slow.
var KernelEndTimeout = time.Second

// Stuck is set once a GPU of this process has a kernel that will not exit before the process does.
var Stuck atomic.Bool

// CloseTimeout returns the time limit for a Close, which is shorter if a kernel is stuck, because
// work behind that kernel may never complete.
func CloseTimeout(usual time.Duration) time.Duration {
	if Stuck.Load() {
		return min(usual, KernelEndTimeout)
	}
	return usual
}
