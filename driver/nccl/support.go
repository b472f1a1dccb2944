package nccl

import (
	"fmt"

	"symmem/driver"
	"symmem/internal/nccl"
)

// A window is memory that all ranks of a group have registered with NCCL. NCCL has special kernels,
// called window kernels here, that access windows. But it has them only for some calls: for
// example, NCCL 2.29 has one for a ReduceScatter that adds Float32 values, but none for one that
// averages them, and none for any Broadcast.

// windowSupport determines which calls of a group have window kernels. It is the same on all ranks,
// except for rank.
type windowSupport struct {
	// noWindowsReason explains why no call has a window kernel, or is "".
	noWindowsReason  string
	hasAverageKernel bool // NCCL has a window kernel for ReduceScatter with Avg
	hasShiftedLoads  bool // NCCL has the defect nccl.ShiftedLoads: it reads misaligned input wrongly
	rank             int  // this rank in the group
	machines         int  // number of machines of the group
}

// firstAverageVersion is the first NCCL version with a window kernel for averages: 2.30.3.
const firstAverageVersion = 23003

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

// disable notes that no call has a window kernel, because NCCL has registered no window on the
// given rank. If noWindowsReason is already set, it stays.
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
	case driver.AllGather:
		return "" // NCCL has window kernels for any data type
	case driver.AllReduce, driver.ReduceScatter:
		return s.unsupportedReduction(call)
	default:
		return fmt.Sprintf("NCCL has no window kernel for %v", call.Operation)
	}
}

// unsupportedReduction is unsupportedReason for an AllReduce or ReduceScatter.
func (s *windowSupport) unsupportedReduction(call *driver.Call) string {
	hasType := call.DataType == driver.Float32 || call.DataType == driver.Float16 ||
		call.DataType == driver.BFloat16
	if !hasType {
		return fmt.Sprintf("NCCL has no window kernel for %v of %v", call.Operation, call.DataType)
	}

	// AllReduce with Avg uses no window kernels in any version, because some versions have the defect
	// nccl.AverageWithoutKernel.
	canAverage := s.hasAverageKernel && call.Operation == driver.ReduceScatter
	isSupported := call.ReduceOp == driver.Sum || (call.ReduceOp == driver.Avg && canAverage)
	if !isSupported {
		return fmt.Sprintf("NCCL has no window kernel for %v with %v", call.Operation, call.ReduceOp)
	}

	return ""
}

// inputAlignment is the alignment in bytes with which inputs avoid the defect nccl.ShiftedLoads.
const inputAlignment = 4

// isMisaligned reports whether the defect nccl.ShiftedLoads affects a call: the kernel of some rank
// would read misaligned input.
func (s *windowSupport) isMisaligned(call *driver.Call) bool {
	if !s.hasShiftedLoads {
		return false
	}

	// Some buffers consist of a part for each rank. All parts are aligned only if the buffer is, and
	// if the size of a part is a multiple of the alignment.
	partBytes := uintptr(call.Count * int64(call.DataType.Size()))
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
