package symmem

import (
	"slices"
	"sort"

	"symmem/driver"
)

// windowTable is an immutable snapshot of a group's windows, by address. Queries read it without a
// lock; registrations replace it.
type windowTable struct {
	starts []uintptr
	places []windowPlace
}

// windowPlace is one window of the table.
type windowPlace struct {
	pool    *Pool
	segment *segment
	window  driver.Window
}

// find returns the window that holds a range, if one does.
func (t *windowTable) find(address uintptr, bytes int64) (*windowPlace, bool) {
	low, high := 0, len(t.starts)
	for low < high {
		middle := int(uint(low+high) >> 1)
		if t.starts[middle] <= address {
			low = middle + 1
		} else {
			high = middle
		}
	}
	if low == 0 {
		return nil, false
	}
	p := &t.places[low-1]
	offset := int64(address - t.starts[low-1])
	return p, bytes >= 0 && offset < p.segment.key.Bytes && bytes <= p.segment.key.Bytes-offset
}

// IsSymmetric tells whether a range of this rank's memory lies in one window of the group. It takes
// no lock and asks nobody.
func (rt *Runtime) IsSymmetric(address uintptr, bytes int64, g *Group) bool {
	_, ok := g.table.Load().find(address, bytes)
	return ok
}

func (g *Group) addWindow(p *Pool, s *segment, w driver.Window) {
	g.state.Lock()
	defer g.state.Unlock()
	old := g.table.Load()
	at := sort.Search(len(old.starts), func(i int) bool {
		return old.starts[i] >= uintptr(s.start)
	})
	g.replace(&windowTable{
		starts: slices.Insert(slices.Clone(old.starts), at, uintptr(s.start)),
		places: slices.Insert(slices.Clone(old.places), at, windowPlace{p, s, w}),
	})
}

func (g *Group) removeWindow(p *Pool, s *segment) {
	g.state.Lock()
	defer g.state.Unlock()
	old, fresh := g.table.Load(), &windowTable{}
	for i, place := range old.places {
		if place.pool != p || place.segment != s {
			fresh.starts = append(fresh.starts, old.starts[i])
			fresh.places = append(fresh.places, place)
		}
	}
	g.replace(fresh)
}

// replace publishes a table and makes every prepared plan stale. g.state is held.
func (g *Group) replace(t *windowTable) {
	g.table.Store(t)
	g.epoch.Add(1)
}
