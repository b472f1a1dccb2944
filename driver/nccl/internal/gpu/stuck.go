package gpu

import (
	"sync/atomic"
	"time"
)

// KernelEndTimeout limits the wait for a kernel after it was asked to exit. Tests raise it on the
// software GPU, because its kernels are threads that compete for processors.
var KernelEndTimeout = time.Second

// Stuck is set once a GPU of this process has a kernel that will not exit before the process
// does. From then on, NCCL may never finish destroying a communicator, because it waits for whole
// devices.
var Stuck atomic.Bool

// CloseTimeout returns the time limit for a Close. If a kernel is stuck, it limits usual to
// KernelEndTimeout, because work queued behind the stuck kernel may never complete, and memory
// stays mapped anyway.
func CloseTimeout(usual time.Duration) time.Duration {
	if Stuck.Load() {
		return min(usual, KernelEndTimeout)
	}
	return usual
}
