package torch

import (
	"context"
	"fmt"

	"symmem"
)

// Check compares the histories of the pools whose domain holds a group: collective.
func (l *Library) Check(handle uint64) error {
	r, g, err := l.find(handle)
	if err != nil {
		return err
	}
	for _, p := range r.all() {
		if err := p.settled(); err != nil {
			return err
		}
	}
	return l.apart("comparing", g.Check)
}

// SetCheck changes how much ranks compare: collective over the world.
func (l *Library) SetCheck(level int) error {
	r, err := l.current()
	if err != nil {
		return err
	}
	to, err := term("check level", levels, level)
	if err != nil {
		return err
	}
	return l.apart("setting the check level", func(ctx context.Context) error {
		return r.rt.SetCheck(ctx, to)
	})
}

// Note puts numbers of the caller's into the history of a pool, for a call site.
func (l *Library) Note(number int, kind, value int64, site uint32) error {
	p, err := l.settledPool(number)
	if err != nil {
		return err
	}
	return p.interop.Note(p.Pool, kind, value, symmem.Site(site))
}

// maxSite is the most bytes that a call site may have.
const maxSite = 1 << 12

// Site returns the number of a call site.
func (l *Library) Site(text string) (uint32, error) {
	r, err := l.current()
	if err != nil {
		return 0, err
	}
	if len(text) > maxSite {
		return 0, fmt.Errorf("a call site of %d bytes: %w", len(text), symmem.ErrInvalid)
	}
	return uint32(r.rt.Interop().Site(text)), nil
}
