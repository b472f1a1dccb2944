package gpu

import (
	"sync/atomic"
	"time"
)

// KernelEndTimeout limits the wait for kernels that have been told to exit. Tests raise it on the
// software GPU, whose kernels are threads that compete for processors.
var KernelEndTimeout = time.Second

// Stuck reports whether a GPU of this process has a kernel that will not exit before the process
// does. NCCL may then never finish destroying a communicator, because it waits for whole devices.
var Stuck atomic.Bool

// CloseTimeout returns the time limit for a Close, which is usual unless a kernel is stuck. In that
// case it is shorter, because work behind the kernel may never complete, and memory stays mapped
// anyway.
func CloseTimeout(usual time.Duration) time.Duration {
	if Stuck.Load() {
		return min(usual, KernelEndTimeout)
	}
	return usual
}
