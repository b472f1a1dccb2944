package gpu

import (
	"sync/atomic"
	"time"
)

// KernelEndTimeout limits the wait for kernels that have been told to end. Tests raise it on the
// software GPU, whose kernels are threads that compete for processors.
var KernelEndTimeout = time.Second

// Stuck reports whether a GPU of this process has a kernel that ends only with the process. NCCL
// may then never finish destroying a communicator, because it waits for whole devices.
var Stuck atomic.Bool

// CloseTimeout returns the time limit for a Close. It is usual unless a kernel is stuck. Then it is
// shorter, because work behind the kernel may never end, and memory stays mapped anyway.
func CloseTimeout(usual time.Duration) time.Duration {
	if Stuck.Load() {
		return min(usual, KernelEndTimeout)
	}
	return usual
}
