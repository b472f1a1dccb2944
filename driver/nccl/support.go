package nccl

import (
	"fmt"

	"symmem/driver"
	"symmem/internal/nccl"
)

// windowSupport determines which calls have window kernels: NCCL kernels that access memory which
// all ranks have registered. NCCL 2.29 has one to sum Float32 values in a ReduceScatter, for
// example, but none for averages and none for Broadcast.
type windowSupport struct {
	noWindowsReason  string // why no call has a window kernel, or ""
	hasAverageKernel bool   // for ReduceScatter with Avg
	hasShiftedLoads  bool   // misaligned input gives wrong results (nccl.ShiftedLoads)
	rank             int    // this rank in the group; other fields are the same on all ranks
	machines         int    // number of machines of the group
}

const firstAverageVersion = 23003 // NCCL 2.30.3 has the first window kernel for averages

// newWindowSupport returns the windowSupport of a group on the given number of machines. major is
// the major compute capability of the GPUs.
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

// disable sets noWindowsReason, unless it is set, because NCCL has registered no window on a rank.
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

// unsupportedReason returns "" if the call has a window kernel.
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
		return s.unsupportedReduction(call)
	default:
		return fmt.Sprintf("NCCL has no window kernel for %v", call.Operation)
	}
}

func (s *windowSupport) unsupportedReduction(call *driver.Call) string {
	hasType := call.DataType == driver.Float32 || call.DataType == driver.Float16 ||
		call.DataType == driver.BFloat16
	if !hasType {
		return fmt.Sprintf("NCCL has no window kernel for %v of %v", call.Operation, call.DataType)
	}

	// AllReduce never uses the kernel for averages, because of nccl.AverageWithoutKernel.
	canAverage := s.hasAverageKernel && call.Operation == driver.ReduceScatter
	isSupported := call.ReduceOp == driver.Sum || (call.ReduceOp == driver.Avg && canAverage)
	if !isSupported {
		return fmt.Sprintf("NCCL has no window kernel for %v with %v", call.Operation, call.ReduceOp)
	}

	return ""
}

const inputAlignment = 4 // bytes; avoids the defect nccl.ShiftedLoads

// isMisaligned reports whether the kernel of some rank would read misaligned input, and NCCL has
// the defect nccl.ShiftedLoads.
func (s *windowSupport) isMisaligned(call *driver.Call) bool {
	if !s.hasShiftedLoads {
		return false
	}

	buffer := call.Send
	isDivided := false // into one part for each rank; ranks read different parts
	switch {
	case call.Operation == driver.AllGather && call.InPlace(s.rank):
		buffer = call.Recv // contains the inputs
		isDivided = true
	case call.Operation == driver.ReduceScatter:
		isDivided = true
	}

	partBytes := uintptr(call.Count * int64(call.DataType.Size()))
	arePartsMisaligned := isDivided && partBytes%inputAlignment != 0
	return buffer%inputAlignment != 0 || arePartsMisaligned
}
