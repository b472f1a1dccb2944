package kernels

import (
	"symmem/driver"
	"symmem/internal/cuda"
)

// Local describes the part of a norm after the all-reduce. It adds the sums to the residual and
// normalizes the result, and uses only local memory. Addresses of buffers are multiples of
// driver.NormAlign.
type Local struct {
	driver.Norm
	// Send is the address of the sums. Recv is the address of the output. They may be equal.
	Send, Recv uintptr
	// Fault is the address of the fault word that the all-reduce sets. The word is at FaultOffset
	// in this rank's exchange memory. If it is set, the local kernel writes poison. AddKernel and
	// NormKernel do not read it.
	Fault uintptr
}

// AddKernel and NormKernel together do the work of a local kernel. Measurements compare the two
// with it. AddKernel adds the sums to the residual. NormKernel normalizes the residual.
const (
	AddKernel  = "add_local_bf16"
	NormKernel = "rms_local_bf16"

	shortKernel = "norm_short_bf16"
	longKernel  = "norm_long_bf16"
)

// maxThreads is the number of threads in the largest block.
const maxThreads = 512

// isLong reports whether a row is long. Each thread's part of a long row needs more registers than
// a thread has when two blocks share a multiprocessor.
func (l *Local) isLong() bool { return l.Hidden > 2*maxThreads*driver.NormUnit }

// Kernel returns the name of the kernel. If the kernel overlaps with the all-reduce, Kernel always
// returns the kernel for long rows. Its registers leave no room for a second block, but for 32 rows
// of 8192 elements it is faster by 6 percent.
func (l *Local) Kernel(overlaps bool) string {
	if l.isLong() || overlaps {
		return longKernel
	}
	return shortKernel
}

// Grid returns the grid of the local kernels and of NormKernel. It has one block per row.
func (l *Local) Grid() (blocks, threads int) {
	warps := min((l.Hidden/driver.NormUnit+warp-1)/warp, maxThreads/warp)
	return int(max(l.Rows, 1)), int(warps) * warp
}

// Overlaps reports whether the kernel may be launched before the all-reduce has ended. Its waiting
// blocks occupy multiprocessors that kernels of other groups may need. So the grid may occupy at
// most a quarter of the GPU.
func (l *Local) Overlaps(multiprocessors int) bool {
	blocks, threads := l.Grid()
	return blocks*threads <= multiprocessors*maxThreads/4
}

// normStep returns the step that completes a norm after the all-reduce. If the all-reduce fails, the
// step writes poison.
func normStep(l *Launch, t *Transport) Step {
	local := Local{
		Norm: *l.Norm, Send: l.Recv, Recv: l.Recv, Fault: t.Exchange[l.Rank] + FaultOffset,
	}
	s := Step{Params: local.Params(), Local: true}
	s.Overlaps = t.Overlaps && l.overlaps() && local.Overlaps(l.Multiprocessors)
	s.Kernel = local.Kernel(s.Overlaps)
	s.Blocks, s.Threads = local.Grid()
	return s
}

// Params returns the arguments of the kernels, in the layout of struct Local in src/local.h.
func (l *Local) Params() cuda.Params {
	return cuda.ParamsOf(&struct {
		send, residual, weight, recv, fault uintptr
		rows, hidden                        uint32
		epsilon                             float32
	}{
		l.Send, l.Residual, l.Weight, l.Recv, l.Fault, uint32(l.Rows), uint32(l.Hidden), l.Epsilon,
	})
}
