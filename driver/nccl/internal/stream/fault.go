package stream

import (
	"slices"

	"symmem/internal/ranked"
)

// faults are what the next Synchronize of a stream is to tell.
type faults struct {
	mu    ranked.Mutex[faultsMu]
	first error // since the last take; guarded by mu
	// blamed are the groups whose fault the stream has told of or will tell of; culprit is that of
	// the first.
	blamed  []Group // guarded by mu
	culprit Group   // guarded by mu
}

// add keeps the first fault.
func (f *faults) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.first == nil {
		f.first = err
	}
}

// blame is add for the fault of a group, which is told once.
func (f *faults) blame(g Group, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.Contains(f.blamed, g) {
		return
	}
	f.blamed = append(f.blamed, g)
	if f.first == nil {
		f.first, f.culprit = err, g
	}
}

// told notes that the caller knows of the fault of a group.
func (f *faults) told(g Group) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Contains(f.blamed, g) {
		f.blamed = append(f.blamed, g)
	}
	if f.culprit == g {
		f.first, f.culprit = nil, nil
	}
}

// take returns the first fault, once.
func (f *faults) take() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.first
	f.first, f.culprit = nil, nil
	return err
}
