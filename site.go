package symmem

import (
	"context"
	"fmt"

	"symmem/internal/ledger"
	"symmem/internal/ranked"
)

// Site is a place in a program that is not Go's, such as a line of Python: see Runtime.Site. 0 is
// none.
type Site uint32

// sites are the names of Sites.
type sites struct {
	mu    ranked.Mutex[sitesMu]
	names *ledger.Sites // made at the first use; guarded by mu
}

// Site returns the number of a place, such as "model.py:120": the same text has the same number in
// this Runtime. Once 65,536 are known a new one is 0. It is the caller's part to ask for it only
// where call sites are wanted.
func (rt *Runtime) Site(text string) Site {
	rt.sites.mu.Lock()
	defer rt.sites.mu.Unlock()
	if rt.sites.names == nil {
		rt.sites.names = ledger.NewSites()
	}
	return Site(rt.sites.names.Intern(0, text))
}

// named returns the text of a Site.
func (rt *Runtime) named(s Site) string {
	rt.sites.mu.Lock()
	defer rt.sites.mu.Unlock()
	return rt.sites.names.At(uint32(s))
}

// latestSite is the place of the group's latest call that came with one.
func (g *Group) latestSite() string { return g.rt.named(Site(g.site.Load())) }

// AllocAt is AllocOn with the place for which it is done, for error messages.
func (p *Pool) AllocAt(s *Stream, bytes int64, at Site) (Buffer, error) {
	// No code of Go's lies below MaxSites, so numbers of Sites and program counters share a table.
	return p.alloc(s, bytes, uintptr(at))
}

// ReserveAt is ReserveOn with the place for which it is done, for error messages.
func (p *Pool) ReserveAt(
	ctx context.Context, s *Stream, bytes int64, g *Group, at Site,
) error {
	return p.reserveFor(ctx, s, bytes, g, uintptr(at))
}

// Note puts something into the pool's history that the ranks of the domain must have alike, beyond
// what the pool does itself: two numbers, not negative, that mean what the caller wants. The next
// comparison that finds a difference names it, with its place. It waits for nobody.
func (p *Pool) Note(kind, value int64, at Site) error {
	if kind < 0 || value < 0 {
		return invalid("noting %d of kind %d", value, kind)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("pool: %w", ErrClosed)
	}
	p.ledger.Absorb(&ledger.Event{
		Kind: ledger.KindNote, Segment: -1, Size: value, Requested: kind, Site: p.site(uintptr(at)),
	})
	return nil
}
