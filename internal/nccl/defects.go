package nccl

import "fmt"

// Defect describes a known defect of some NCCL versions.
type Defect struct {
	// From is the first version with the defect, and Below is the version that fixes it.
	From, Below int
	// Major is the lowest major compute capability that is affected, or 0 for all GPUs.
	Major int
	// Effect describes what goes wrong. Workaround describes how symmem avoids it.
	Effect, Workaround string
	// Source cites the evidence.
	Source string
}

// The known defects that matter to symmem.
var (
	// ShiftedLoads occurs because NCCL's function loadPack shifts data from beyond a pack, which is
	// its unit of loading, into the pack's last word. Every fourth byte or element is therefore
	// wrong.
	ShiftedLoads = &Defect{
		From: 22703, Below: 23003,
		Effect: "window kernels give wrong results for inputs of 1- and 2-byte types that are not " +
			"aligned to 4 bytes",
		Workaround: "symmem uses the plain path for them",
		Source:     "the contract suite on 4 H200, and loadPack in the sources",
	}
	// MachinesWithoutWindows affects communicators that span machines.
	MachinesWithoutWindows = &Defect{
		From: 22703, Below: 22902,
		Effect:     "communicators across machines get windows that no kernel uses",
		Workaround: "symmem uses the plain path between machines",
		Source:     "the sources; later versions return a NULL window",
	}
	// AverageWithoutKernel occurs because NCCL uses one condition to check whether there is a
	// suitable kernel, and another to select the kernel.
	AverageWithoutKernel = &Defect{
		From: 23003, Below: 23008,
		Effect:     "AllReduce with avg does not use window kernels",
		Workaround: "symmem uses the plain path for it, in all versions",
		Source:     "the sources of 2.30.3 to 2.30.7",
	}
	// EarlyStart occurs because window kernels are launched with programmatic stream serialization,
	// but do not wait for earlier work in the stream (griddepcontrol.wait). If the previous kernel
	// triggers their launch early, which a caller cannot detect, the window kernels read data before
	// the previous kernel has written it.
	EarlyStart = &Defect{
		From: 22803, Below: 23007, Major: 9,
		Effect: "window kernels may start before their predecessor in the stream has ended, if it " +
			"triggers their launch early (programmatic dependent launch), and read data that it has not " +
			"written yet",
		Workaround: "symmem inserts an empty kernel, which prevents that, and registers no windows " +
			"with communicators of other libraries",
		Source: "sglang #37768; the wait is in 2.27.7, and in 2.30.7 again",
	}
	// KeptByAbort means that the memory of windows leaks.
	KeptByAbort = &Defect{
		Below: 22907,
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

// In reports whether a version has the defect on GPUs of the given major compute capability.
func (d *Defect) In(version, major int) bool {
	return version >= d.From && version < d.Below && major >= d.Major
}

// Versions describes the affected versions.
func (d *Defect) Versions() string {
	if d.From == 0 {
		return "fixed in " + VersionText(d.Below)
	}
	return fmt.Sprintf("since %s, fixed in %s", VersionText(d.From), VersionText(d.Below))
}
