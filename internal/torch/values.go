package torch

import (
	"context"

	"symmem"
)

// Value makes one call on a value of the ranks of a group, under a name, for a call site: see
// symmem.Interop.Value.
func (l *Library) Value(
	handle uint64, operation int, name string, value int64, site uint32,
) (int64, error) {
	r, g, err := l.find(handle)
	if err != nil {
		return 0, err
	}
	return l.compare(g, func(ctx context.Context) (int64, error) {
		return r.rt.Interop().Value(ctx, g.Group, symmem.ValueOperation(operation), name, value,
			symmem.Site(site))
	})
}

// Step compares which step begins on the ranks of a group: see symmem.Interop.Step.
func (l *Library) Step(handle uint64, what string, site uint32) error {
	r, g, err := l.find(handle)
	if err != nil {
		return err
	}
	_, err = l.compare(g, func(ctx context.Context) (int64, error) {
		return 0, r.rt.Interop().Step(ctx, g.Group, what, symmem.Site(site))
	})
	return err
}

// compare makes a call that compares values. On one machine a wait asks its caller in the way of
// collectives; between machines the call has a thread of its own.
func (l *Library) compare(
	g *group, call func(context.Context) (int64, error),
) (int64, error) {
	if g.machines <= 1 {
		return call(context.Background())
	}
	var got int64 // a call that was left may still write it
	err := l.apart("comparing values", func(ctx context.Context) (err error) {
		got, err = call(ctx)
		return err
	})
	if err != nil {
		return 0, err
	}
	return got, nil
}
