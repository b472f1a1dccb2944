package direct

import (
	"testing"
	"unsafe"

	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/kernels"
)

// TestStopReachesKernelsThatWaitWhereNoCallOfCUDAMayBeMade: the host's word takes none.
func TestStopReachesKernelsThatWaitWhereNoCallOfCUDAMayBeMade(t *testing.T) {
	gpu.Stuck.Store(true)
	defer gpu.Stuck.Store(false)
	report := &kernels.Report{}
	x := Exchange{report: report}
	x.Stop()
	end := (*kernels.Fault)(unsafe.Add(unsafe.Pointer(report), kernels.EndOffset))
	if *end != kernels.Aborted {
		t.Errorf("the word of the host is %d", *end)
	}
}
