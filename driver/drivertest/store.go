package drivertest

import (
	"bytes"
	"context"
	"slices"
	"sync"
)

// Ranks find each other through a store of keys and values. For example, rank 0 sets the key "host"
// to "a", and rank 1 gets it. If rank 1 calls Get first, Get waits for the Set of rank 0.

// Store is a driver.Store in the memory of one process. It is safe for concurrent use.
type Store struct {
	mu      sync.Mutex
	values  map[string][]byte // guarded by mu
	changed chan struct{}     // closed when a value is set; nil if no Get waits; guarded by mu
}

// Set stores a value.
func (s *Store) Set(_ context.Context, key string, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(key, value)
	return nil
}

// set stores a value and wakes all calls of Get that wait. The caller must hold s.mu.
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

// CompareSet stores desired if the current value equals expected. It returns the value after the
// call. A key without a value has the current value "".
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

// Get waits for a value and returns it.
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	for {
		value, isSet, changed := s.lookup(key)
		if isSet {
			return value, nil
		}

		select {
		case <-changed: // perhaps by another key, so look again
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Peek returns a value and whether it is set.
func (s *Store) Peek(_ context.Context, key string) (value []byte, isSet bool, err error) {
	value, isSet, _ = s.lookup(key)
	return value, isSet, nil
}

// ServedBy returns -1, because no rank serves the store.
func (s *Store) ServedBy() int { return -1 }

// lookup returns a value. If there is none, it returns a channel that is closed when any value is
// set.
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
