package gpu

import (
	"sync/atomic"
	"time"
)

// KernelEndTimeout limits the wait for a kernel that was asked to exit. Tests raise it on the
// software GPU.
var KernelEndTimeout = time.Second

// Stuck is set forever once a GPU of this process has a kernel that will not exit before the
// process does. The backend then makes no CUDA calls that may wait for the whole device.
var Stuck atomic.Bool

// CloseTimeout returns the time limit for a Close. It is shorter if a kernel is stuck.
func CloseTimeout(usual time.Duration) time.Duration {
	if Stuck.Load() {
		return min(usual, KernelEndTimeout)
	}

	return usual
}
