package torch

import (
	"context"

	"symmem"
)

// Value makes one call on a value of the ranks of a group, under a name, for a call site: see
// symmem.Interop.Value. On one machine a wait asks its caller in the way of collectives; between
// machines the call has a thread of its own.
func (l *Library) Value(
	handle uint64, operation int, name string, value int64, site uint32,
) (int64, error) {
	r, g, err := l.find(handle)
	if err != nil {
		return 0, err
	}
	call := func(ctx context.Context) (int64, error) {
		return r.rt.Interop().Value(ctx, g.Group, symmem.ValueOperation(operation), name, value,
			symmem.Site(site))
	}
	if g.machines <= 1 {
		return call(context.Background())
	}
	return l.valueApart(name, call)
}

func (l *Library) valueApart(
	name string, call func(context.Context) (int64, error),
) (int64, error) {
	var got int64 // a call that was left may still write it
	err := l.apart("comparing value "+name, func(ctx context.Context) (err error) {
		got, err = call(ctx)
		return err
	})
	if err != nil {
		return 0, err
	}
	return got, nil
}
