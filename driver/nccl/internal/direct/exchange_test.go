package direct

import (
	"testing"
	"unsafe"

	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/kernels"
)

// TestStopWithoutCUDA stops kernels while CUDA calls are not allowed because a kernel is stuck.
// Stop must still write the word in host memory.
func TestStopWithoutCUDA(t *testing.T) {
	gpu.Stuck.Store(true)
	defer gpu.Stuck.Store(false)
	report := &kernels.Report{}
	x := Exchange{report: report}
	x.Stop()
	end := (*kernels.Fault)(unsafe.Add(unsafe.Pointer(report), kernels.EndOffset))
	if *end != kernels.Aborted {
		t.Errorf("got word %d in host memory, want %d", *end, kernels.Aborted)
	}
}
