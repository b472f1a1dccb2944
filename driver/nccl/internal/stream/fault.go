package stream

import (
	"slices"

	"symmem/internal/ranked"
)

// faults holds the error that the next Synchronize of a stream returns.
type faults struct {
	faultsMu   ranked.Mutex[faultsMu]
	first      error // first error since the last takeFault; guarded by faultsMu
	firstGroup Group // group that failed with first, or nil; guarded by faultsMu
	// kept is set once the stream is being closed. From then on, first is not cleared when it is
	// returned, so that all concurrent calls of Synchronize return it; guarded by faultsMu.
	kept bool
	// reported lists the groups whose fault the stream has returned or will return; guarded by
	// faultsMu.
	reported []Group
}

// addFault makes the next Synchronize return err, unless an earlier error is pending.
func (f *faults) addFault(err error) {
	f.faultsMu.Lock()
	defer f.faultsMu.Unlock()
	if f.first == nil {
		f.first = err
	}
}

// ReportFault makes the next Synchronize return a group's fault, unless an earlier error is
// pending. The fault of each group is returned only once.
func (f *faults) ReportFault(g Group, err error) {
	g = g.Whole()
	f.faultsMu.Lock()
	defer f.faultsMu.Unlock()
	if slices.Contains(f.reported, g) {
		return
	}
	f.reported = append(f.reported, g)
	if f.first == nil {
		f.first, f.firstGroup = err, g
	}
}

// MarkReported records that the fault of a group has been returned to the caller in another way,
// so that Synchronize does not return it again.
func (f *faults) MarkReported(g Group) {
	g = g.Whole()
	f.faultsMu.Lock()
	defer f.faultsMu.Unlock()
	if !slices.Contains(f.reported, g) {
		f.reported = append(f.reported, g)
	}
	if f.firstGroup == g {
		f.first, f.firstGroup = nil, nil
	}
}

// takeFault returns the first fault and clears it, unless the stream is being closed.
func (f *faults) takeFault() error {
	f.faultsMu.Lock()
	defer f.faultsMu.Unlock()
	err := f.first
	if !f.kept {
		f.first, f.firstGroup = nil, nil
	}
	return err
}

func (f *faults) keepFault() {
	f.faultsMu.Lock()
	defer f.faultsMu.Unlock()
	f.kept = true
}
