package binding

import (
	"maps"
	"slices"
	"sync"
)

// table is a map by handle that is safe for concurrent use. The zero value is an empty table.
type table[K comparable, V any] struct {
	mu      sync.RWMutex
	entries map[K]V // nil before the first add; guarded by mu
}

func (t *table[K, V]) find(handle K) (V, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	v, ok := t.entries[handle]
	return v, ok
}

// findOrCreate returns the value of a handle, or creates and adds one. create is called with mu
// held, so it must not use the table.
func (t *table[K, V]) findOrCreate(handle K, create func(K) (V, error)) (V, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v, ok := t.entries[handle]; ok {
		return v, nil
	}

	v, err := create(handle)
	if err != nil {
		return v, err
	}

	t.addLocked(handle, v)
	return v, nil
}

// findOrAdd returns the value of a handle, or adds v and returns it.
func (t *table[K, V]) findOrAdd(handle K, v V) V {
	t.mu.Lock()
	defer t.mu.Unlock()
	if found, ok := t.entries[handle]; ok {
		return found
	}

	t.addLocked(handle, v)
	return v
}

// add adds a value, or replaces that of the handle.
func (t *table[K, V]) add(handle K, v V) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.addLocked(handle, v)
}

// addLocked is add for callers that hold mu.
func (t *table[K, V]) addLocked(handle K, v V) {
	if t.entries == nil {
		t.entries = map[K]V{}
	}

	t.entries[handle] = v
}

// remove removes and returns the value of a handle, if there is one.
func (t *table[K, V]) remove(handle K) (V, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, ok := t.entries[handle]
	delete(t.entries, handle)
	return v, ok
}

// all returns the values in no particular order.
func (t *table[K, V]) all() []V {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.entries))
}

func (t *table[K, V]) removeIf(match func(V) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.entries, func(_ K, v V) bool { return match(v) })
}

// removeAll removes and returns all values.
func (t *table[K, V]) removeAll() []V {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.Collect(maps.Values(t.entries))
	clear(t.entries)
	return all
}

func (t *table[K, V]) size() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.entries)
}
