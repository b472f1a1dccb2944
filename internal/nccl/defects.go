package nccl

import (
	"fmt"
	"math"
)

// Defect describes a known defect of some NCCL versions. Versions are numbers from ncclGetVersion,
// such as 22703 for 2.27.3.
type Defect struct {
	Since      int    // first affected version, or 0
	FixedIn    int    // first version without the defect, or Unfixed
	Major      int    // lowest affected major compute capability, or 0
	Effect     string // what users of NCCL notice
	Workaround string // how symmem avoids the effect
	Source     string // evidence of the defect
}

// Unfixed is the FixedIn of a defect that no known version fixes.
const Unfixed = math.MaxInt

// Affects reports whether a version has the defect on GPUs of the given major compute capability.
func (d *Defect) Affects(version, major int) bool {
	return version >= d.Since && version < d.FixedIn && major >= d.Major
}

// Versions describes the affected versions, such as "since 2.27.3, fixed in 2.30.3".
func (d *Defect) Versions() string {
	hasStart := d.Since > 0
	isFixed := d.FixedIn != Unfixed
	switch {
	case hasStart && isFixed:
		return fmt.Sprintf("since %s, fixed in %s", VersionText(d.Since), VersionText(d.FixedIn))
	case hasStart:
		return "since " + VersionText(d.Since)
	case isFixed:
		return "fixed in " + VersionText(d.FixedIn)
	default:
		return "all"
	}
}

// The known defects that matter to symmem. Window kernels access memory that all ranks have
// registered. The plain path of symmem uses NCCL's other kernels.
var (
	// In ShiftedLoads, loadPack reads beyond the end of the input.
	ShiftedLoads = &Defect{
		Since: 22703, FixedIn: 23003,
		Effect: "window kernels give wrong results for inputs of 1- and 2-byte types that are not " +
			"aligned to 4 bytes",
		Workaround: "symmem uses the plain path for them",
		Source:     "the contract suite on 4 H200, and loadPack in the sources",
	}
	// In RASOverflow, rasCollCommsInit writes beyond the end of a buffer.
	RASOverflow = &Defect{
		Since: 22703, FixedIn: 22902,
		Effect: "a query of NCCL's RAS subsystem, even one from ncclras or another job, can corrupt " +
			"the heap of a process that is creating a communicator for several ranks",
		Workaround: "symmem sends no queries, so its errors lack NCCL's counts of launches",
		Source:     "rasCollCommsInit in the sources; other crashes after queries: nccl #1669, #1762",
	}
	MachinesWithoutWindows = &Defect{
		Since: 22703, FixedIn: 22902,
		Effect:     "communicators across machines get windows that no kernel uses",
		Workaround: "symmem uses the plain path between machines",
		Source:     "the sources; later versions return a NULL window",
	}
	AverageWithoutKernel = &Defect{
		Since: 23003, FixedIn: 23008,
		Effect:     "AllReduce with avg does not use window kernels",
		Workaround: "symmem uses the plain path for it, in all versions",
		Source:     "the sources of 2.30.3 to 2.30.7",
	}
	// MultipliedCount explains SkippedTail.
	SkippedTail = &Defect{
		FixedIn: 22907,
		Effect: "a reduction in a communicator of one rank that multiplies by a factor (premul_sum) " +
			"leaves up to 31 elements at the end of the output unwritten",
		Workaround: "symmem uses a second call for them",
		Source:     "the contract suite on 2 H200, and oneRankReduce in the sources",
	}
	// In CapturesInvalidated, a thread of NCCL calls cudaFreeHost without switching to relaxed mode
	// (cudaThreadExchangeStreamCaptureMode).
	CapturesInvalidated = &Defect{
		FixedIn: Unfixed,
		Effect: "freeing a communicator that spans machines invalidates captures in global mode " +
			"(cudaStreamCaptureModeGlobal) of all threads (cudaErrorStreamCaptureInvalidated)",
		Workaround: "symmem uses relaxed mode for its own captures; other libraries need " +
			"thread-local mode",
		Source: "verify --for on 4 H200 with 2.28.9, 2.30.7 and 2.32.3, and ncclCudaHostFree in the " +
			"sources",
	}
	// In LostByAbort, the network thread ends before it has sent all data of a finished kernel.
	LostByAbort = &Defect{
		FixedIn: Unfixed,
		Effect: "aborting a communicator that spans machines after its last collective can make that " +
			"collective fail on other ranks",
		Workaround: "symmem uses CommDestroy instead if its group was closed without a fault",
		Source:     "TestFirstCallsAreCapturedBetweenMachines on 4 H200 with 2.30.7, and the sources",
	}
	// In OldMapping, a capture finds NCCL's record of earlier memory at the same addresses.
	OldMapping = &Defect{
		FixedIn: Unfixed,
		Effect: "the memory of a graph's plain calls stays mapped on other ranks for up to ten groups " +
			"of calls after the graph has been destroyed; if other memory is mapped at these addresses " +
			"meanwhile, new graphs use the old memory: wrong results without an error",
		Workaround: "symmem makes NCCL unmap such memory before it unmaps or suspends it",
		Source:     "TestRemapOnAGPU on 2 H100 with 2.28.9, and ncclCommPollCallbacks in the sources",
	}
	EndlessDestroy = &Defect{
		Since: 23203, FixedIn: Unfixed,
		Effect: "CommDestroy of a communicator that spans machines never returns if a rank dies " +
			"during the call",
		Workaround: "Close waits one second longer, and reports the lost ranks; the communicator is " +
			"given up after the group's timeout, and remains until the process ends, as does a thread",
		Source: "TestKillsOnAGPU on 4 H100 as two machines",
	}
	// In EarlyStart, window kernels lack the instruction griddepcontrol.wait, which waits for earlier
	// work in the stream after a launch with programmatic stream serialization.
	EarlyStart = &Defect{
		Since: 22803, FixedIn: 23007, Major: 9,
		Effect: "window kernels may start before their predecessor in the stream has ended, if it " +
			"triggers their launch early (programmatic dependent launch), and read data that it has not " +
			"written yet",
		Workaround: "symmem inserts an empty kernel, which prevents that, and registers no windows " +
			"with communicators of other libraries",
		Source: "sglang #37768; the wait is in 2.27.7, and in 2.30.7 again",
	}
	KeptByAbort = &Defect{
		FixedIn: 22907,
		Effect: "after an abort that ends kernels, the memory of their windows is not freed until the " +
			"process ends",
		Workaround: "symmem deregisters windows before the abort if no kernel is running",
		Source:     "the sources, and tests on 4 H200",
	}
)

// Defects lists all known defects, the most severe first.
var Defects = []*Defect{
	EarlyStart, OldMapping, ShiftedLoads, SkippedTail, RASOverflow, LostByAbort, EndlessDestroy,
	CapturesInvalidated, MachinesWithoutWindows, AverageWithoutKernel, KeptByAbort,
}

// MultipliedCount returns how many of count elements a reduction multiplies and writes in spite of
// SkippedTail. For example, NCCL divides 100,003 elements of 4 bytes among 25 blocks of threads.
// Each block writes 4,000 elements, so the last 3 are skipped.
func MultipliedCount(count, elementBytes int64) int64 {
	// These constants are from NCCL's oneRankReduce.
	const (
		bytesPerBlock = 16 << 10
		bytesPerPack  = 16 // A thread reads a pack at once.
		maxBlocks     = 32
	)
	if count == 0 {
		return 0
	}

	blocks := min(divideRoundingUp(count*elementBytes, bytesPerBlock), maxBlocks)
	elementsPerBlock := count / blocks // The defect: NCCL should round up.
	elementsPerPack := bytesPerPack / elementBytes
	packsPerBlock := divideRoundingUp(elementsPerBlock, elementsPerPack)
	writtenPerBlock := packsPerBlock * elementsPerPack
	return min(count, blocks*writtenPerBlock)
}

func divideRoundingUp(a, b int64) int64 { return (a + b - 1) / b }
