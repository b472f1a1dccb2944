package binding

import (
	"maps"
	"slices"
	"sync"
)

// table maps handles to values. It is safe for concurrent use.
type table[K comparable, V any] struct {
	mu      sync.RWMutex
	entries map[K]V // guarded by mu
}

func (t *table[K, V]) find(handle K) (V, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	v, ok := t.entries[handle]
	return v, ok
}

// findOrCreate returns the value of a handle. If there is none, it adds the value that create
// returns. It calls create with the lock held, so create must not use the table.
func (t *table[K, V]) findOrCreate(handle K, create func(K) (V, error)) (V, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v, ok := t.entries[handle]; ok {
		return v, nil
	}
	v, err := create(handle)
	if err == nil {
		t.setLocked(handle, v)
	}
	return v, err
}

func (t *table[K, V]) findOrAdd(handle K, v V) V {
	v, _ = t.findOrCreate(handle, func(K) (V, error) { return v, nil }) // create cannot fail
	return v
}

func (t *table[K, V]) add(handle K, v V) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setLocked(handle, v)
}

func (t *table[K, V]) setLocked(handle K, v V) {
	if t.entries == nil {
		t.entries = map[K]V{}
	}
	t.entries[handle] = v
}

func (t *table[K, V]) remove(handle K) (V, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, ok := t.entries[handle]
	delete(t.entries, handle)
	return v, ok
}

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
