package kernels

import (
	"symmem/driver"
	"symmem/internal/cuda"
)

// Local describes the part of a norm after the all-reduce, which runs on each GPU: it adds the sums
// to the residual and normalizes the result. Addresses of buffers are multiples of
// driver.NormAlign.
type Local struct {
	driver.Norm
	// Send is the address of the sums, Recv of the output; they may be equal.
	Send, Recv uintptr
	// Fault is the address of the fault word of the all-reduce, which is at FaultOffset in this rank's
	// exchange memory. If the word is set, Kernel writes poison; AddKernel and NormKernel do not read
	// it.
	Fault uintptr
}

// AddKernel and NormKernel do the work of Kernel in two steps, for comparison in measurements:
// AddKernel adds the sums to the residual, and NormKernel normalizes the residual.
const (
	AddKernel  = "add_local_bf16"
	NormKernel = "rms_local_bf16"

	shortKernel = "norm_short_bf16"
	longKernel  = "norm_long_bf16"
)

// maxThreads is the size of the largest block.
const maxThreads = 512

// isLong reports whether a thread's part of a row needs more registers than it has if two blocks
// share a multiprocessor.
func (l *Local) isLong() bool { return l.Hidden > 2*maxThreads*driver.NormUnit }

// Kernel returns the name of the kernel. A kernel that overlaps with the all-reduce is the one for
// long rows, whose registers leave no room for a second block on a multiprocessor: for 32 rows of
// 8192 it is faster by 6 percent.
func (l *Local) Kernel(overlaps bool) string {
	if l.isLong() || overlaps {
		return longKernel
	}
	return shortKernel
}

// Grid returns the grid of Kernel and NormKernel, which has a block for each row.
func (l *Local) Grid() (blocks, threads int) {
	warps := min((l.Hidden/driver.NormUnit+warp-1)/warp, maxThreads/warp)
	return int(max(l.Rows, 1)), int(warps) * warp
}

// Overlaps reports whether the grid may be launched before the all-reduce has ended. Its waiting
// blocks occupy multiprocessors that kernels of other groups may need, so it may occupy at most a
// quarter of the GPU.
func (l *Local) Overlaps(multiprocessors int) bool {
	blocks, threads := l.Grid()
	return blocks*threads <= multiprocessors*maxThreads/4
}

// Params returns the arguments of the kernels: struct Local of src/local.h.
func (l *Local) Params() cuda.Params {
	return cuda.ParamsOf(&struct {
		send, residual, weight, recv, fault uintptr
		rows, hidden                        uint32
		epsilon                             float32
	}{
		l.Send, l.Residual, l.Weight, l.Recv, l.Fault, uint32(l.Rows), uint32(l.Hidden), l.Epsilon,
	})
}
