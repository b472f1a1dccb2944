package drivertest

import (
	"bytes"
	"context"
	"slices"
	"sync"
)

// Store is a driver.Store for the ranks of one process. It is safe for concurrent use.
type Store struct {
	mu      sync.Mutex
	values  map[string][]byte // guarded by mu
	changed chan struct{}     // closed by the next call of set, or nil; guarded by mu
}

// Set stores a copy of the value.
func (s *Store) Set(_ context.Context, key string, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(key, value)
	return nil
}

// set stores a copy of the value, and wakes waiting calls of Get. The caller must hold s.mu.
func (s *Store) set(key string, value []byte) {
	if s.values == nil {
		s.values = map[string][]byte{}
	}

	s.values[key] = slices.Clone(value)
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// CompareSet stores desired if the current value equals expected, and returns the value after that.
// It treats a missing key as empty.
func (s *Store) CompareSet(
	_ context.Context, key string, expected, desired []byte,
) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes.Equal(s.values[key], expected) {
		s.set(key, desired)
	}

	return slices.Clone(s.values[key]), nil
}

// Get waits until the key is set, and returns a copy of its value.
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	for {
		value, isSet, changed := s.lookup(key)
		if isSet {
			return value, nil
		}

		select {
		case <-changed: // perhaps for another key
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Peek returns a copy of the value, or false if the key is not set.
func (s *Store) Peek(_ context.Context, key string) (value []byte, isSet bool, err error) {
	value, isSet, _ = s.lookup(key)
	return value, isSet, nil
}

// ServedBy returns -1, because no rank serves the store.
func (s *Store) ServedBy() int { return -1 }

// lookup returns a copy of the value or, if the key is missing, a channel that set closes.
func (s *Store) lookup(key string) (value []byte, isSet bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, isSet = s.values[key]
	if isSet {
		return slices.Clone(value), true, nil
	}

	if s.changed == nil {
		s.changed = make(chan struct{})
	}

	return nil, false, s.changed
}
