package gpu

import (
	"sync/atomic"
	"time"
)

// EndingTime limits the wait for kernels that have been signaled to end. Tests on the software GPU
// raise it, because its kernels are threads that compete for the machine's processors.
var EndingTime = time.Second

// Stuck reports whether a GPU of this process has a kernel that ends only with the process. NCCL
// may then never finish destroying a communicator, because it waits for whole devices.
var Stuck atomic.Bool

// ClosingTime returns the time limit for a Close that usually waits up to usual. The limit is
// shorter if a kernel is stuck, since work behind it on any stream may never end, and memory stays
// mapped anyway.
func ClosingTime(usual time.Duration) time.Duration {
	if Stuck.Load() {
		return min(usual, EndingTime)
	}
	return usual
}
