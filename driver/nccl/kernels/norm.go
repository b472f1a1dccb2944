package kernels

import (
	"symmem/driver"
	"symmem/internal/cuda"
)

// Local is the part of a norm that follows the all-reduce, on one GPU: it adds the sums to the
// residual and normalizes the result. Addresses of buffers are multiples of driver.NormAlign.
type Local struct {
	driver.Norm
	// Send are the sums, Recv is the output, which may be the sums.
	Send, Recv uintptr
	// Fault is where the fault word of the all-reduce lies: at FaultOffset of this rank's exchange
	// memory. If it is set, Kernel writes poison; AddKernel and NormKernel do not read it.
	Fault uintptr
}

// AddKernel and NormKernel are the two steps that Kernel is measured against: the sums are added to
// the residual, and the residual is normalized.
const (
	AddKernel  = "add_local_bf16"
	NormKernel = "rms_local_bf16"

	shortKernel = "norm_short_bf16"
	longKernel  = "norm_long_bf16"
)

// maxThreads is the size of the largest block.
const maxThreads = 512

// long reports whether a thread has more of a row than fits into its registers where two blocks
// share a multiprocessor.
func (l *Local) long() bool { return l.Hidden > 2*maxThreads*driver.NormUnit }

// Kernel is the name of its kernel. One that overlaps with the all-reduce is that of long rows,
// whose registers leave no room for a second block on a multiprocessor: for 32 rows of 8192 that is
// faster by 6 percent.
func (l *Local) Kernel(overlaps bool) string {
	if l.long() || overlaps {
		return longKernel
	}
	return shortKernel
}

// Grid is how to launch Kernel and NormKernel: a block for a row.
func (l *Local) Grid() (blocks, threads int) {
	warps := min((l.Hidden/driver.NormUnit+warp-1)/warp, maxThreads/warp)
	return int(max(l.Rows, 1)), int(warps) * warp
}

// Overlaps reports whether the grid may be launched before the all-reduce has ended. While it waits
// it takes room from kernels of other groups, for which the all-reduce of another rank may wait. So
// it may take no more than a quarter of the GPU's multiprocessors, with the registers that it has.
func (l *Local) Overlaps(multiprocessors int) bool {
	blocks, threads := l.Grid()
	return blocks*threads <= multiprocessors*maxThreads/4
}

// Params are the arguments of its kernels: struct Local of src/local.h.
func (l *Local) Params() cuda.Params {
	return cuda.ParamsOf(&struct {
		send, residual, weight, recv, fault uintptr
		rows, hidden                        uint32
		epsilon                             float32
	}{
		l.Send, l.Residual, l.Weight, l.Recv, l.Fault, uint32(l.Rows), uint32(l.Hidden), l.Epsilon,
	})
}
