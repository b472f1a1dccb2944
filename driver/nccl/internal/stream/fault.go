package stream

import (
	"slices"

	"symmem/internal/ranked"
)

// faults holds the errors that the next Synchronize of a stream returns.
type faults struct {
	mu    ranked.Mutex[faultsMu]
	first error // since the last take; guarded by mu
	// reported are the groups whose fault the stream has returned or will return; firstOf is that of
	// the first.
	reported []Group // guarded by mu
	firstOf  Group   // guarded by mu
}

// add keeps the first fault.
func (f *faults) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.first == nil {
		f.first = err
	}
}

// addOf is add for the fault of a group, which is returned once.
func (f *faults) addOf(g Group, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.Contains(f.reported, g) {
		return
	}
	f.reported = append(f.reported, g)
	if f.first == nil {
		f.first, f.firstOf = err, g
	}
}

// markReported notes that the caller knows of the fault of a group.
func (f *faults) markReported(g Group) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Contains(f.reported, g) {
		f.reported = append(f.reported, g)
	}
	if f.firstOf == g {
		f.first, f.firstOf = nil, nil
	}
}

// take returns the first fault, once.
func (f *faults) take() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.first
	f.first, f.firstOf = nil, nil
	return err
}
