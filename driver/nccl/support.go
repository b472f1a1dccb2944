package nccl

import (
	"fmt"

	"symmem/driver"
)

// NCCL versions at which window kernels change (2.27.3 is the first that has windows).
const (
	// noGroupsOfMachines is the first version that tells of communicators without support by a NULL
	// window; before, ranks of several machines got windows that no kernel used.
	noGroupsOfMachines = 22902
	// averaging is the first version with window kernels for ReduceScatter with avg.
	averaging = 23003
	// shifting is the first version whose window kernels load elements of less than 4 bytes from
	// addresses that are not multiples of 4 without spoiling every fourth byte or element: from
	// 2.27.3 to 2.29.7 sums and gathers of such buffers are wrong, with result 0. Its function
	// loadPack shifts the last word of a pack by what lies behind the pack.
	shifting = 23003
)

// support knows which calls NCCL has window kernels for. It depends on NCCL's version and the
// group alone, so all ranks know the same.
type support struct {
	// none says why there are no window kernels at all; empty if there are. It is set before the
	// first window is handed out.
	none string
	// average tells that ReduceScatter can average, shift that buffers need no alignment.
	average, shift bool
	rank           int
}

func newSupport(c *communicator) support {
	code, text := c.device.nccl.Version()
	s := support{
		average: code >= averaging, shift: code >= shifting, rank: c.cfg.Rank,
	}
	switch m := machines(c.members); {
	case !c.device.nccl.Windows():
		s.none = fmt.Sprintf("NCCL %s has no windows: 2.27.3 is the first that has", text)
	case m > 1 && code < noGroupsOfMachines:
		s.none = fmt.Sprintf("the ranks are on %d machines, and NCCL %s has window kernels on one "+
			"machine only", m, text)
	case len(c.cfg.Ranks) == 1:
		s.none = "the group has one rank"
	}
	return s
}

// Windowed tells whether NCCL has a window kernel for a call.
func (c *communicator) Windowed(call *driver.Call) error {
	c.mu.Lock()
	kinds := c.kinds
	c.mu.Unlock()
	if kinds.none == "" && c.unwanted() {
		return fmt.Errorf("the group has no windows of NCCL's, since its table takes none (setting "+
			"it to the window path makes them): %w", driver.ErrUnsupported)
	}
	if why := kinds.lacks(call); why != "" {
		return fmt.Errorf("%s: %w", why, driver.ErrUnsupported)
	}
	return nil
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
	// AllReduce with avg passes NCCL's own test in 2.30.3 to 2.30.7 and then finds no kernel.
	averages := s.average && call.Operation == driver.ReduceScatter
	if call.ReduceOp != driver.Sum && !(call.ReduceOp == driver.Avg && averages) {
		return fmt.Sprintf("NCCL has no window kernel for %v with %v", call.Operation, call.ReduceOp)
	}
	return ""
}

// wordBytes is what the window kernels load at once.
const wordBytes = 4

// misaligned tells whether a window kernel of this NCCL would load elements from addresses that it
// cannot load from, on any rank. In place, the input of an AllGather is a part of its output, and
// a rank reads each part of the input of a ReduceScatter somewhere.
func (s *support) misaligned(call *driver.Call) bool {
	if s.shift {
		return false
	}
	part := uintptr(call.Count * int64(call.DataType.Size()))
	switch {
	case call.Operation == driver.AllGather && call.Send == call.Recv+uintptr(s.rank)*part:
		return call.Recv%wordBytes != 0 || part%wordBytes != 0
	case call.Operation == driver.ReduceScatter:
		return call.Send%wordBytes != 0 || part%wordBytes != 0
	}
	return call.Send%wordBytes != 0
}
