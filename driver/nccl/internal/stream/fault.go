package stream

import (
	"slices"

	"symmem/internal/ranked"
)

// faults holds the error that the next Synchronize of a stream returns.
type faults struct {
	faultsMu   ranked.Mutex[faultsMu] // guards the fields below
	firstError error                  // since the last takeFault
	firstGroup Group                  // group that failed with firstError, or nil
	keepFirst  bool                   // set by Close; takeFault then keeps firstError
	reported   []Group                // Synchronize or another call has returned their faults
}

// addFault makes the next Synchronize return err, unless an earlier error is pending.
func (f *faults) addFault(err error) {
	f.faultsMu.Lock()
	defer f.faultsMu.Unlock()
	if f.firstError == nil {
		f.firstError = err
	}
}

// ReportFault makes the next Synchronize return a group's fault, unless an earlier error is pending
// or the stream has already returned a fault of the group.
func (f *faults) ReportFault(g Group, err error) {
	g = g.UserGroup()
	f.faultsMu.Lock()
	defer f.faultsMu.Unlock()
	if slices.Contains(f.reported, g) {
		return
	}

	f.reported = append(f.reported, g)
	if f.firstError == nil {
		f.firstError, f.firstGroup = err, g
	}
}

// MarkReported notes that another call than Synchronize returns the group's fault.
func (f *faults) MarkReported(g Group) {
	g = g.UserGroup()
	f.faultsMu.Lock()
	defer f.faultsMu.Unlock()
	if !slices.Contains(f.reported, g) {
		f.reported = append(f.reported, g)
	}

	if f.firstGroup == g {
		f.firstError, f.firstGroup = nil, nil
	}
}

func (f *faults) takeFault() error {
	f.faultsMu.Lock()
	defer f.faultsMu.Unlock()
	err := f.firstError
	if !f.keepFirst {
		f.firstError, f.firstGroup = nil, nil
	}

	return err
}

func (f *faults) keepFirstFault() {
	f.faultsMu.Lock()
	defer f.faultsMu.Unlock()
	f.keepFirst = true
}
