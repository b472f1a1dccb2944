package nccl

import "fmt"

// Defect describes a known defect of some NCCL versions.
type Defect struct {
	Since      int // first affected version, or 0 if all earlier versions are affected
	FixedIn    int // first version in which the defect is fixed
	Major      int // lowest affected major compute capability, or 0 for all GPUs
	Effect     string
	Workaround string // how symmem avoids the effect
	Source     string // evidence of the defect
}

// The known defects that matter to symmem.
var (
	// ShiftedLoads occurs because NCCL's function loadPack shifts data from beyond a pack, its unit
	// of loading, into the pack's last word.
	ShiftedLoads = &Defect{
		Since: 22703, FixedIn: 23003,
		Effect: "window kernels give wrong results for inputs of 1- and 2-byte types that are not " +
			"aligned to 4 bytes",
		Workaround: "symmem uses the plain path for them",
		Source:     "the contract suite on 4 H200, and loadPack in the sources",
	}
	// MachinesWithoutWindows affects communicators that span machines.
	MachinesWithoutWindows = &Defect{
		Since: 22703, FixedIn: 22902,
		Effect:     "communicators across machines get windows that no kernel uses",
		Workaround: "symmem uses the plain path between machines",
		Source:     "the sources; later versions return a NULL window",
	}
	// AverageWithoutKernel occurs because NCCL looks for a suitable kernel under one condition, and
	// selects the kernel under another.
	AverageWithoutKernel = &Defect{
		Since: 23003, FixedIn: 23008,
		Effect:     "AllReduce with avg does not use window kernels",
		Workaround: "symmem uses the plain path for it, in all versions",
		Source:     "the sources of 2.30.3 to 2.30.7",
	}
	// EarlyStart occurs because window kernels are launched with programmatic stream serialization,
	// but do not wait for earlier work in the stream (griddepcontrol.wait). A caller cannot detect
	// whether the previous kernel triggers their launch early.
	EarlyStart = &Defect{
		Since: 22803, FixedIn: 23007, Major: 9,
		Effect: "window kernels may start before their predecessor in the stream has ended, if it " +
			"triggers their launch early (programmatic dependent launch), and read data that it has not " +
			"written yet",
		Workaround: "symmem inserts an empty kernel, which prevents that, and registers no windows " +
			"with communicators of other libraries",
		Source: "sglang #37768; the wait is in 2.27.7, and in 2.30.7 again",
	}
	// KeptByAbort leaks the memory of windows.
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
	EarlyStart, ShiftedLoads, MachinesWithoutWindows, AverageWithoutKernel, KeptByAbort,
}

// Affects reports whether a version has the defect on GPUs of the given major compute capability.
func (d *Defect) Affects(version, major int) bool {
	return version >= d.Since && version < d.FixedIn && major >= d.Major
}

// Versions describes the affected versions.
func (d *Defect) Versions() string {
	if d.Since == 0 {
		return "fixed in " + VersionText(d.FixedIn)
	}
	return fmt.Sprintf("since %s, fixed in %s", VersionText(d.Since), VersionText(d.FixedIn))
}
