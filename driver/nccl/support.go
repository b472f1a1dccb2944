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
)

// support knows which calls NCCL has window kernels for. It depends on NCCL's version and the
// group alone, so all ranks know the same.
type support struct {
	// none says why there are no window kernels at all; empty if there are. It is set before the
	// first window is handed out.
	none string
	// average tells that ReduceScatter can average.
	average bool
}

func newSupport(c *communicator) support {
	code, text := c.device.nccl.Version()
	s := support{average: code >= averaging}
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
