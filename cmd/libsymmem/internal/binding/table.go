package binding

import (
	"maps"
	"slices"
	"sync"
)

// table maps handles to values, for concurrent use.
type table[K comparable, V any] struct {
	mu      sync.RWMutex
	entries map[K]V // guarded by mu
}

// find returns the value of a handle.
func (t *table[K, V]) find(handle K) (V, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	v, ok := t.entries[handle]
	return v, ok
}

// findOrCreate returns the value of a handle, and creates it if there is none.
func (t *table[K, V]) findOrCreate(handle K, create func(K) (V, error)) (V, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v, ok := t.entries[handle]; ok {
		return v, nil
	}
	v, err := create(handle)
	if err == nil {
		t.set(handle, v)
	}
	return v, err
}

// add stores the value of a handle.
func (t *table[K, V]) add(handle K, v V) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(handle, v)
}

// set is add for callers that hold t.mu.
func (t *table[K, V]) set(handle K, v V) {
	if t.entries == nil {
		t.entries = map[K]V{}
	}
	t.entries[handle] = v
}

// remove deletes a handle and returns its value.
func (t *table[K, V]) remove(handle K) (V, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, ok := t.entries[handle]
	delete(t.entries, handle)
	return v, ok
}

// removeAll deletes all handles and returns their values.
func (t *table[K, V]) removeAll() []V {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.Collect(maps.Values(t.entries))
	clear(t.entries)
	return all
}

// size returns the number of handles.
func (t *table[K, V]) size() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.entries)
}
