package nccl

import (
	"fmt"

	"symmem/driver"
	"symmem/internal/nccl"
)

// averaging is the first version of NCCL with window kernels for ReduceScatter with avg. 2.27.3 is
// the first that has windows; nccl.Defects has what is wrong with them.
const averaging = 23003

// support knows which calls NCCL has window kernels for. It depends on NCCL's version and the
// group alone, so all ranks know the same.
type support struct {
	// none says why there are no window kernels at all; empty if there are. It is set before the
	// first window is handed out.
	none string
	// average reports whether ReduceScatter can average, shift whether buffers need no alignment.
	average, shift bool
	rank           int
}

// newSupport is that of a group on GPUs of a compute capability, which is on so many machines.
func newSupport(library *nccl.Library, major int, group *driver.GroupConfig, machines int) support {
	code, text := library.Version()
	s := support{
		average: code >= averaging, shift: !nccl.ShiftedLoads.In(code, major), rank: group.Rank,
	}
	switch {
	case !library.Windows():
		s.none = fmt.Sprintf("NCCL %s has no windows: 2.27.3 is the first that has", text)
	case machines > 1 && nccl.MachinesWithoutWindows.In(code, major):
		s.none = fmt.Sprintf("the ranks are on %d machines, and NCCL %s has window kernels on one "+
			"machine only", machines, text)
	case len(group.Ranks) == 1:
		s.none = "the group has one rank"
	}
	return s
}

// lacks says why there is no window kernel, or nothing if there is one. NCCL has them for AllGather
// of any type, and for sums of AllReduce and ReduceScatter in three float types.
func (s *support) lacks(call *driver.Call) string {
	if s.none != "" {
		return s.none
	}
	if s.misaligned(call) {
		return "NCCL before 2.30.3 gives wrong results in windows unless inputs are aligned to 4 bytes"
	}
	switch call.Operation {
	case driver.AllGather:
		return ""
	case driver.AllReduce, driver.ReduceScatter:
	default:
		return fmt.Sprintf("NCCL has no window kernel for %v", call.Operation)
	}
	switch call.DataType {
	case driver.Float32, driver.Float16, driver.BFloat16:
	default:
		return fmt.Sprintf("NCCL has no window kernel for %v of %v", call.Operation, call.DataType)
	}
	// AllReduce with avg has no kernel anywhere (nccl.AverageWithoutKernel).
	averages := s.average && call.Operation == driver.ReduceScatter
	if call.ReduceOp != driver.Sum && !(call.ReduceOp == driver.Avg && averages) {
		return fmt.Sprintf("NCCL has no window kernel for %v with %v", call.Operation, call.ReduceOp)
	}
	return ""
}

// wordBytes is what the window kernels load at once.
const wordBytes = 4

// misaligned reports whether a window kernel of this NCCL would load elements from addresses that
// it cannot load from, on any rank. In place, the input of an AllGather is a part of its output,
// and a rank reads each part of the input of a ReduceScatter somewhere.
func (s *support) misaligned(call *driver.Call) bool {
	if s.shift {
		return false
	}
	part := uintptr(call.Count * int64(call.DataType.Size()))
	switch {
	case call.Operation == driver.AllGather && call.InPlace(s.rank):
		return call.Recv%wordBytes != 0 || part%wordBytes != 0
	case call.Operation == driver.ReduceScatter:
		return call.Send%wordBytes != 0 || part%wordBytes != 0
	}
	return call.Send%wordBytes != 0
}

// packBytes is what kernels over buffers move at once, where input and output lie alike in it.
const packBytes = 16

// lieApart reports whether a kernel over buffers finds no packs that lie alike, on this rank or on
// another.
func lieApart(call *driver.Call) bool {
	part := uintptr(call.Count * int64(call.DataType.Size()))
	parts := call.Operation == driver.AllGather || call.Operation == driver.ReduceScatter
	return (call.Send-call.Recv)%packBytes != 0 || parts && part%packBytes != 0
}
