package nccl

import (
	"fmt"

	"symmem/driver"
	"symmem/internal/nccl"
)

// firstAverageVersion is the first NCCL version with a window kernel for averages, which is
// 2.30.3.
const firstAverageVersion = 23003

// windowSupport determines which calls of a group have window kernels (NCCL kernels that access
// registered memory). All ranks get the same result.
type windowSupport struct {
	// noWindowsReason explains why no call has a window kernel, or is "".
	noWindowsReason  string
	hasAverageKernel bool // for ReduceScatter with Avg
	hasShiftedLoads  bool // NCCL has the defect nccl.ShiftedLoads
	rank             int  // this rank in the group
	machines         int  // number of machines of the group
}

// newWindowSupport returns the windowSupport of a group. major is the major compute capability of
// the GPUs.
func newWindowSupport(
	library *nccl.Library, major int, group *driver.GroupConfig, machines int,
) windowSupport {
	versionCode, version := library.Version()
	s := windowSupport{
		hasAverageKernel: versionCode >= firstAverageVersion,
		hasShiftedLoads:  nccl.ShiftedLoads.Affects(versionCode, major),
		rank:             group.Rank,
		machines:         machines,
	}
	switch {
	case !library.HasWindows():
		s.noWindowsReason = fmt.Sprintf("NCCL %s has no windows: 2.27.3 or later is required", version)
	case machines > 1 && nccl.MachinesWithoutWindows.Affects(versionCode, major):
		s.noWindowsReason = fmt.Sprintf("the ranks are on %d machines, and NCCL %s has window kernels "+
			"only for groups on one machine", machines, version)
	case len(group.Ranks) == 1:
		s.noWindowsReason = "the group has one rank"
	}
	return s
}

// disable sets noWindowsReason after NCCL has registered no window on the given rank. It keeps an
// earlier reason.
func (s *windowSupport) disable(rank int, version string) {
	if s.noWindowsReason != "" {
		return
	}
	explanation := "for this group (symmem doctor explains why)"
	if s.machines > 1 {
		explanation = fmt.Sprintf("for this group on %d machines, because they need GIN, "+
			"communication that kernels start (symmem doctor, started by the same launcher, explains "+
			"why)", s.machines)
	}
	s.noWindowsReason = fmt.Sprintf("NCCL %s has registered no window on rank %d: it has no window "+
		"kernels %s", version, rank, explanation)
}

// unsupportedReason explains why a call has no window kernel, or returns "".
func (s *windowSupport) unsupportedReason(call *driver.Call) string {
	if s.noWindowsReason != "" {
		return s.noWindowsReason
	}
	if s.isMisaligned(call) {
		return "NCCL before 2.30.3 gives wrong results in windows unless inputs are aligned to 4 bytes"
	}
	switch call.Operation {
	case driver.AllGather: // for any type
		return ""
	case driver.AllReduce, driver.ReduceScatter: // depends on the type and the reduction
	default:
		return fmt.Sprintf("NCCL has no window kernel for %v", call.Operation)
	}
	switch call.DataType {
	case driver.Float32, driver.Float16, driver.BFloat16:
	default:
		return fmt.Sprintf("NCCL has no window kernel for %v of %v", call.Operation, call.DataType)
	}
	// No version has a window kernel for AllReduce with Avg (nccl.AverageWithoutKernel).
	canAverage := s.hasAverageKernel && call.Operation == driver.ReduceScatter
	isSupported := call.ReduceOp == driver.Sum || (call.ReduceOp == driver.Avg && canAverage)
	if !isSupported {
		return fmt.Sprintf("NCCL has no window kernel for %v with %v", call.Operation, call.ReduceOp)
	}
	return ""
}

// inputAlignment is the alignment in bytes with which inputs avoid the defect nccl.ShiftedLoads.
const inputAlignment = 4

// isMisaligned reports whether any rank would read misaligned input with the defect
// nccl.ShiftedLoads. Parts of a buffer are aligned only if their size is, too.
func (s *windowSupport) isMisaligned(call *driver.Call) bool {
	if !s.hasShiftedLoads {
		return false
	}
	partBytes := uintptr(call.Count * int64(call.DataType.Size()))
	switch {
	case call.Operation == driver.AllGather && call.InPlace(s.rank):
		return call.Recv%inputAlignment != 0 || partBytes%inputAlignment != 0
	case call.Operation == driver.ReduceScatter:
		return call.Send%inputAlignment != 0 || partBytes%inputAlignment != 0
	}
	return call.Send%inputAlignment != 0
}
