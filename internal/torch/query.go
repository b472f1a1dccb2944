package torch

import (
	"cmp"
	"fmt"
	"slices"

	"symmem"
)

// IsSymmetric reports whether a range lies in one window of a group. What is closed has no windows.
func (l *Library) IsSymmetric(handle uint64, bytes uint64, address uintptr) bool {
	r, g, err := l.find(handle)
	return err == nil && bytes <= maxBytes &&
		r.rt.Interop().IsSymmetric(g.Group, address, int64(bytes))
}

// Window is a range of addresses.
type Window struct{ Address, Bytes int64 }

// Windows lists the windows of a group by address.
func (l *Library) Windows(handle uint64) ([]Window, error) {
	r, g, err := l.find(handle)
	if err != nil {
		return nil, err
	}
	var all []Window
	for _, p := range r.all() {
		for s := range p.Segments() {
			if r.rt.Interop().IsSymmetric(g.Group, s.Address, s.Bytes) {
				all = append(all, Window{int64(s.Address), s.Bytes})
			}
		}
	}
	slices.SortFunc(all, func(a, b Window) int { return cmp.Compare(a.Address, b.Address) })
	return all, nil
}

// place is what Locate returns.
type place struct {
	Pool    int    `json:"pool"`
	Segment int    `json:"segment"`
	Offset  int64  `json:"offset"`
	Bytes   int64  `json:"bytes"`
	Live    bool   `json:"live"`
	Address uint64 `json:"address"`
}

// Locate says where an address lies, as JSON: in which buffer, or in which segment if in none.
func (l *Library) Locate(address uintptr) (string, error) {
	r, err := l.current()
	if err != nil {
		return "", err
	}
	p := r.owner(address)
	if p == nil {
		return "", fmt.Errorf("locating %#x: %w", address, symmem.ErrForeign)
	}
	number := r.number(p)
	if b, ok := p.holding(address); ok {
		return encode(place{
			Pool: number, Segment: b.Segment(), Live: true, Bytes: b.Size(),
			Offset: b.Offset() + int64(address-b.Address()), Address: uint64(b.Address()),
		})
	}
	for s := range p.Segments() {
		if offset := address - s.Address; offset < uintptr(s.Bytes) {
			return encode(place{
				Pool: number, Segment: s.Segment, Offset: int64(offset), Address: uint64(s.Address),
			})
		}
	}
	return "", fmt.Errorf("locating %#x: nothing is mapped there: %w", address, symmem.ErrForeign)
}

func (r *rank) number(p *pool) int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Index(r.pools[:], p)
}

// holding finds the live buffer that holds an address.
func (p *pool) holding(address uintptr) (symmem.Buffer, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live.holding(address)
}

// poolStats describe one pool.
type poolStats struct {
	Pool   int    `json:"pool"`
	Domain string `json:"domain"`
	symmem.PoolStats
	Mapped int64 `json:"mapped"`
	Live   int   `json:"live"`
}

// groupStats describe one group.
type groupStats struct {
	Handle uint64 `json:"handle"`
	Name   string `json:"name"`
	symmem.GroupStats
	Attachments []guestStats `json:"attachments"`
}

type guestStats struct {
	Handle  uint64 `json:"handle"`
	Name    string `json:"name"`
	Windows int    `json:"windows"`
}

// stats is what Stats returns.
type stats struct {
	Open    bool                  `json:"open"`
	Rank    int                   `json:"rank"`
	Size    int                   `json:"size"`
	Backend string                `json:"backend"`
	Check   string                `json:"check"`
	Pools   []poolStats           `json:"pools"`
	Groups  map[string]groupStats `json:"groups"`
	Streams int                   `json:"streams"`
	Refused int64                 `json:"refused"`
}

// Stats returns everything that is counted, as JSON.
func (l *Library) Stats() (string, error) {
	r, err := l.current()
	if err != nil {
		return "", err
	}
	s := stats{
		Open: true, Rank: r.rt.Rank(), Size: r.rt.Size(), Backend: r.rt.Device().Backend,
		Check: r.rt.Check().String(), Groups: map[string]groupStats{},
		Refused: l.words.Refused.Load(),
	}
	for _, p := range r.all() {
		s.Pools = append(s.Pools, r.poolStats(p))
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	s.Streams = len(r.streams)
	for handle, g := range r.groups {
		of := groupStats{
			Handle: handle, Name: g.name, GroupStats: g.Stats(), Attachments: []guestStats{},
		}
		for _, a := range g.guests {
			of.Attachments = append(of.Attachments,
				guestStats{a.handle, a.guest.Name(), a.guest.Windows()})
		}
		s.Groups[g.ID()] = of
	}
	return encode(s)
}

func (r *rank) poolStats(p *pool) poolStats {
	s := poolStats{Pool: r.number(p), PoolStats: p.Stats()}
	if domain := p.Domain(); domain != nil {
		s.Domain = domain.ID()
	}
	for segment := range p.Segments() {
		s.Mapped += segment.Bytes
	}
	s.Live, _ = p.held()
	return s
}
