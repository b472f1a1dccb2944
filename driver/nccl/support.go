package nccl

import (
	"fmt"

	"symmem/driver"
	"symmem/internal/nccl"
)

// windowSupport determines which calls have a window kernel, an NCCL kernel that accesses memory
// registered by all ranks. For example, NCCL 2.29 has a window kernel for a ReduceScatter that sums
// Float32 values, but not for a ReduceScatter that averages, and not for Broadcast.
type windowSupport struct {
	noWindowsReason  string // why no call has a window kernel, or ""
	hasAverageKernel bool   // for ReduceScatter with Avg
	hasShiftedLoads  bool   // misaligned input gives wrong results: the defect nccl.ShiftedLoads
	rank             int    // this rank in the group; all other fields are equal on all ranks
	machines         int    // number of machines of the group
}

const firstAverageVersion = 23003 // NCCL 2.30.3 has the first window kernel for averages

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

// disable sets noWindowsReason after NCCL has registered no window on a rank. An earlier reason
// remains.
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

	// NCCL does not use the kernel in AllReduce, because of the defect nccl.AverageWithoutKernel.
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

	input := call.Send
	hasPartPerRank := false // each rank reads a different part of the input
	switch {
	case call.Operation == driver.AllGather && call.InPlace(s.rank):
		input = call.Recv
		hasPartPerRank = true
	case call.Operation == driver.ReduceScatter:
		hasPartPerRank = true
	}

	partBytes := uintptr(call.Count * int64(call.DataType.Size()))
	arePartsMisaligned := hasPartPerRank && partBytes%inputAlignment != 0
	return input%inputAlignment != 0 || arePartsMisaligned
}
