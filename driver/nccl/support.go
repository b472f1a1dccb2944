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
// windows, which is memory registered with NCCL). It is the same on all ranks, except for rank.
type windowSupport struct {
	// noWindowsReason explains why no call has a window kernel, or is "".
	noWindowsReason  string
	hasAverageKernel bool // NCCL has a window kernel for ReduceScatter with Avg
	hasShiftedLoads  bool // NCCL has the defect nccl.ShiftedLoads
	rank             int  // this rank in the group
	machines         int  // number of machines of the group
}

// newWindowSupport returns the windowSupport of a group. major is the major compute capability of
// the GPUs. machines is the number of machines on which the ranks are.
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

// disable makes unsupportedReason return a reason for all calls, because NCCL has registered no
// window on the given rank. If there is such a reason already, it keeps that one.
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
	case driver.AllReduce, driver.ReduceScatter:
		return s.unsupportedReduction(call)
	default:
		return fmt.Sprintf("NCCL has no window kernel for %v", call.Operation)
	}
}

// unsupportedReduction is unsupportedReason for the data type and the reduction of an AllReduce or
// ReduceScatter.
func (s *windowSupport) unsupportedReduction(call *driver.Call) string {
	hasType := call.DataType == driver.Float32 || call.DataType == driver.Float16 ||
		call.DataType == driver.BFloat16
	if !hasType {
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

// isMisaligned reports whether NCCL has the defect nccl.ShiftedLoads and any rank's kernel would
// read misaligned input.
func (s *windowSupport) isMisaligned(call *driver.Call) bool {
	if !s.hasShiftedLoads {
		return false
	}

	partBytes := uintptr(call.Count * int64(call.DataType.Size()))
	// The parts of a buffer are all aligned only if the buffer and the size of a part are aligned.
	arePartsMisaligned := partBytes%inputAlignment != 0
	switch {
	case call.Operation == driver.AllGather && call.InPlace(s.rank):
		// Each rank's input is one part of the output buffer.
		return call.Recv%inputAlignment != 0 || arePartsMisaligned
	case call.Operation == driver.ReduceScatter:
		// Each rank reads one part of every rank's input.
		return call.Send%inputAlignment != 0 || arePartsMisaligned
	}

	return call.Send%inputAlignment != 0
}
