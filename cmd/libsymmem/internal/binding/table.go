package binding

import (
	"maps"
	"slices"
	"sync"
)

// table is a map that is safe for concurrent use. A key is called a handle here, such as the handle
// 7 of a group. The zero value is an empty table.
type table[K comparable, V any] struct {
	mu      sync.RWMutex
	entries map[K]V // nil until the first value is added; guarded by mu
}

func (t *table[K, V]) find(handle K) (V, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	v, ok := t.entries[handle]
	return v, ok
}

// findOrCreate returns the value of a handle. If there is none, it calls create and, unless create
// fails, adds the result. create must not use the table, because the lock is held.
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

	t.setLocked(handle, v)
	return v, nil
}

// findOrAdd returns the value of a handle. If there is none, it adds v and returns v.
func (t *table[K, V]) findOrAdd(handle K, v V) V {
	returnV := func(K) (V, error) { return v, nil }
	found, _ := t.findOrCreate(handle, returnV) // returns no error, because returnV returns none
	return found
}

// add adds a value. If the handle already has a value, add replaces it.
func (t *table[K, V]) add(handle K, v V) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setLocked(handle, v)
}

// setLocked is add for callers that hold the lock.
func (t *table[K, V]) setLocked(handle K, v V) {
	if t.entries == nil {
		t.entries = map[K]V{}
	}

	t.entries[handle] = v
}

// remove removes the value of a handle and returns it. It returns false if there is none.
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

// removeIf removes the values for which match returns true.
func (t *table[K, V]) removeIf(match func(V) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.entries, func(_ K, v V) bool { return match(v) })
}

// removeAll removes all values and returns them.
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
