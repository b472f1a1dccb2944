package nccl

import (
	"fmt"

	"symmem/driver"
	"symmem/internal/nccl"
)

// windowSupport determines which calls have a window kernel. Window kernels are NCCL kernels that
// access windows, memory registered by all ranks. For example, NCCL 2.29 has a window kernel for a
// ReduceScatter that sums Float32 values, but none for averages or for Broadcast.
type windowSupport struct {
	noWindowsReason  string // why no call has a window kernel, or ""
	hasAverageKernel bool   // for ReduceScatter with Avg
	hasShiftedLoads  bool   // the defect nccl.ShiftedLoads: wrong results after misaligned input
	rank             int    // this rank in the group
	machines         int    // number of machines of the group
}

const firstAverageVersion = 23003 // NCCL 2.30.3 has the first window kernel for averages

// newWindowSupport returns the windowSupport of a group. computeCapability is the major number.
func newWindowSupport(
	library *nccl.Library, computeCapability int, group *driver.GroupConfig, machines int,
) windowSupport {
	versionCode, versionText := library.Version()
	s := windowSupport{
		hasAverageKernel: versionCode >= firstAverageVersion,
		hasShiftedLoads:  nccl.ShiftedLoads.Affects(versionCode, computeCapability),
		rank:             group.Rank,
		machines:         machines,
	}
	switch {
	case !library.HasWindows():
		s.noWindowsReason = fmt.Sprintf("NCCL %s has no windows: 2.27.3 or later is required",
			versionText)
	case machines > 1 && nccl.MachinesWithoutWindows.Affects(versionCode, computeCapability):
		s.noWindowsReason = fmt.Sprintf("the ranks are on %d machines, and NCCL %s has window kernels "+
			"only for groups on one machine", machines, versionText)
	case len(group.Ranks) == 1:
		s.noWindowsReason = "the group has one rank"
	}

	return s
}

// disable sets noWindowsReason because NCCL cannot register windows on a rank. An earlier reason
// remains.
func (s *windowSupport) disable(rank int, version string) {
	if s.noWindowsReason != "" {
		return
	}

	s.noWindowsReason = fmt.Sprintf("NCCL %s has registered no window on rank %d: it has no window "+
		"kernels for this group", version, rank)
	if s.machines > 1 {
		s.noWindowsReason += fmt.Sprintf(" on %d machines, because they need GIN, communication that "+
			"kernels start (symmem doctor, started by the same launcher, explains why)", s.machines)
	} else {
		s.noWindowsReason += " (symmem doctor explains why)"
	}
}

// unsupportedReason returns why the call has no window kernel, or "".
func (s *windowSupport) unsupportedReason(call *driver.Call) string {
	if s.noWindowsReason != "" {
		return s.noWindowsReason
	}

	if s.isMisaligned(call) {
		return "NCCL before 2.30.3 gives wrong results in windows unless inputs are aligned to 4 bytes"
	}

	switch call.Operation {
	case driver.AllGather:
		return "" // NCCL has window kernels for any data type
	case driver.AllReduce, driver.ReduceScatter:
		return s.unsupportedReductionReason(call)
	default:
		return fmt.Sprintf("NCCL has no window kernel for %v", call.Operation)
	}
}

func (s *windowSupport) unsupportedReductionReason(call *driver.Call) string {
	hasType := call.DataType == driver.Float32 || call.DataType == driver.Float16 ||
		call.DataType == driver.BFloat16
	if !hasType {
		return fmt.Sprintf("NCCL has no window kernel for %v of %v", call.Operation, call.DataType)
	}

	// In AllReduce, NCCL has the defect nccl.AverageWithoutKernel.
	canAverage := s.hasAverageKernel && call.Operation == driver.ReduceScatter
	isSupported := call.ReduceOp == driver.Sum || (call.ReduceOp == driver.Avg && canAverage)
	if !isSupported {
		return fmt.Sprintf("NCCL has no window kernel for %v with %v", call.Operation, call.ReduceOp)
	}

	return ""
}

const inputAlignment = 4 // bytes; avoids the defect nccl.ShiftedLoads

// isMisaligned reports whether the defect nccl.ShiftedLoads would change the result on some rank.
func (s *windowSupport) isMisaligned(call *driver.Call) bool {
	if !s.hasShiftedLoads {
		return false
	}

	partBytes := uintptr(call.Count * int64(call.DataType.Size()))
	switch {
	case call.Operation == driver.AllGather && call.InPlace(s.rank):
		// The input of each rank is its part of the receive buffer.
		return call.Recv%inputAlignment != 0 || partBytes%inputAlignment != 0
	case call.Operation == driver.ReduceScatter:
		// Each rank reads its part of the send buffer.
		return call.Send%inputAlignment != 0 || partBytes%inputAlignment != 0
	default:
		return call.Send%inputAlignment != 0
	}
}
