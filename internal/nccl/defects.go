package nccl

import "fmt"

// Defect is a known defect of some versions of NCCL.
type Defect struct {
	// From is the first version with the defect, Below the first version without it.
	From, Below int
	// Major is the minimum compute capability that is affected; 0 means any.
	Major int
	// What describes the defect, and Instead how symmem avoids it.
	What, Instead string
	// Source is the evidence.
	Source string
}

// The known defects that matter to symmem.
var (
	// ShiftedLoads: the function loadPack shifts data from beyond a pack into its last word, so
	// that every fourth byte or element is wrong.
	ShiftedLoads = &Defect{
		From: 22703, Below: 23003,
		What: "window kernels give wrong results for inputs of 1- and 2-byte types that are not " +
			"aligned to 4 bytes",
		Instead: "symmem uses the plain path for them",
		Source:  "the contract suite on 4 H200, and loadPack in the sources",
	}
	// MachinesWithoutWindows: a communicator across machines gets windows that no kernel uses.
	MachinesWithoutWindows = &Defect{
		From: 22703, Below: 22902,
		What:    "communicators across machines get windows that no kernel uses",
		Instead: "symmem uses the plain path between machines",
		Source:  "the sources; later versions return a NULL window",
	}
	// AverageWithoutKernel: the check for a kernel and the selection of the kernel disagree.
	AverageWithoutKernel = &Defect{
		From: 23003, Below: 23008,
		What:    "AllReduce with avg does not use window kernels",
		Instead: "symmem uses the plain path for it, in all versions",
		Source:  "the sources of 2.30.3 to 2.30.7",
	}
	// EarlyStart: window kernels are launched with programmatic stream serialization, and do not wait
	// for earlier work in the stream (griddepcontrol.wait). If the previous kernel triggers their
	// launch before its end, they read data that is not yet written. Callers cannot see whether such a
	// kernel is the last one in a stream.
	EarlyStart = &Defect{
		From: 22803, Below: 23007, Major: 9,
		What: "window kernels may start before their predecessor in the stream has ended, if it " +
			"triggers their launch early (programmatic dependent launch), and read data that it has not " +
			"written yet",
		Instead: "symmem inserts an empty kernel, which prevents that, and registers no windows with " +
			"communicators of other libraries",
		Source: "sglang #37768; the wait is in 2.27.7, and in 2.30.7 again",
	}
	// KeptByAbort: the memory of windows is not freed.
	KeptByAbort = &Defect{
		Below: 22907,
		What: "after an abort that ends kernels, the memory of their windows is not freed until the " +
			"process ends",
		Instead: "symmem deregisters windows before the abort if no kernel is running",
		Source:  "the sources, and tests on 4 H200",
	}
)

// Defects lists all known defects, the most severe first.
var Defects = []*Defect{
	EarlyStart, ShiftedLoads, MachinesWithoutWindows, AverageWithoutKernel, KeptByAbort,
}

// In reports whether a version has the defect on GPUs of a major compute capability.
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
