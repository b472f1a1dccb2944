package gpu

import (
	"sync/atomic"
	"time"
)

// EndingTime limits the wait for kernels that have been told to end. Tests on the software GPU,
// whose kernels are threads that compete for processors, raise it.
var EndingTime = time.Second

// Stuck reports whether a GPU of this process has a kernel that ends only with the process. NCCL
// may then never finish destroying a communicator, because it waits for whole devices.
var Stuck atomic.Bool

// ClosingTime returns the time limit for a Close. usual is the normal limit. If a kernel is stuck,
// the limit is shorter, because work behind the kernel may never end, and memory stays mapped
// anyway.
func ClosingTime(usual time.Duration) time.Duration {
	if Stuck.Load() {
		return min(usual, EndingTime)
	}
	return usual
}
