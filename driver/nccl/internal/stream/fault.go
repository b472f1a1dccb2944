package stream

import (
	"slices"

	"symmem/internal/ranked"
)

// faults holds the error that the next Synchronize of a stream returns.
type faults struct {
	faultsMu ranked.Mutex[faultsMu]
	first    error // since the last takeFault; guarded by faultsMu
	firstOf  Group // the group that failed with it, or nil; guarded by faultsMu
	// reported lists the groups whose fault the stream has returned or will return; guarded by
	// faultsMu.
	reported []Group
}

// addFault records an error if it is the first.
func (f *faults) addFault(err error) {
	f.faultsMu.Lock()
	defer f.faultsMu.Unlock()
	if f.first == nil {
		f.first = err
	}
}

// ReportFault makes the next Synchronize return the fault of a group, once, unless an earlier error
// is pending.
func (f *faults) ReportFault(g Group, err error) {
	f.faultsMu.Lock()
	defer f.faultsMu.Unlock()
	if slices.Contains(f.reported, g) {
		return
	}
	f.reported = append(f.reported, g)
	if f.first == nil {
		f.first, f.firstOf = err, g
	}
}

// MarkReported records that the caller has been given the fault of a group in another way.
func (f *faults) MarkReported(g Group) {
	f.faultsMu.Lock()
	defer f.faultsMu.Unlock()
	if !slices.Contains(f.reported, g) {
		f.reported = append(f.reported, g)
	}
	if f.firstOf == g {
		f.first, f.firstOf = nil, nil
	}
}

// takeFault returns the first fault, once.
func (f *faults) takeFault() error {
	f.faultsMu.Lock()
	defer f.faultsMu.Unlock()
	err := f.first
	f.first, f.firstOf = nil, nil
	return err
}
