package binding

import (
	"maps"
	"slices"
	"sync"
)

// table is a map that is safe for concurrent use. The zero value is an empty table.
type table[K comparable, V any] struct {
	mu      sync.RWMutex
	entries map[K]V // nil before the first set; guarded by mu
}

func (t *table[K, V]) find(key K) (V, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	v, ok := t.entries[key]
	return v, ok
}

// findOrCreate returns the value of a key, or creates it. create is called with mu held, so it
// must not use the table.
func (t *table[K, V]) findOrCreate(key K, create func(K) (V, error)) (V, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v, ok := t.entries[key]; ok {
		return v, nil
	}

	v, err := create(key)
	if err != nil {
		return v, err
	}

	t.setLocked(key, v)
	return v, nil
}

// findOrSet returns the value of a key, or sets it to v and returns v.
func (t *table[K, V]) findOrSet(key K, v V) V {
	t.mu.Lock()
	defer t.mu.Unlock()
	if found, ok := t.entries[key]; ok {
		return found
	}

	t.setLocked(key, v)
	return v
}

// set sets the value of a key.
func (t *table[K, V]) set(key K, v V) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setLocked(key, v)
}

// setLocked is set for callers that hold mu.
func (t *table[K, V]) setLocked(key K, v V) {
	if t.entries == nil {
		t.entries = map[K]V{}
	}

	t.entries[key] = v
}

// remove removes and returns the value of a key, if there is one.
func (t *table[K, V]) remove(key K) (V, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, ok := t.entries[key]
	delete(t.entries, key)
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

// removeAll empties the table and returns the values.
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
