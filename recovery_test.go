package symmem_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem"
)

// endure is together for a fault: after it every rank lives and goes on with a new group.
func endure(t *testing.T, n int, o symmem.Options, fault func(r *rank)) {
	t.Helper()
	together(t, n, o, func(r *rank) {
		spare := r.split(r.World(), 0)
		fault(r)
		if err := goOn(r.ctx, r.Runtime, spare); err != nil {
			r.failf("after the fault: %v", err)
		}
	})
}

// goOn makes a group, as programs do after a fault, and computes on it. The parent is a group that
// the fault has not met.
func goOn(ctx context.Context, rt *symmem.Runtime, parent *symmem.Group) error {
	g, err := parent.Split(ctx, 0, 0)
	if err != nil {
		return err
	}
	return errors.Join(symmetricSum(ctx, rt, g), g.Close())
}

// symmetricSum adds up a buffer of a new pool over the ranks of a group.
func symmetricSum(ctx context.Context, rt *symmem.Runtime, g *symmem.Group) error {
	const count = 1024
	p, err := rt.NewPool(symmem.PoolOptions{Domain: g, FirstSegment: 2 * mib})
	if err != nil {
		return err
	}
	b, err := p.Alloc(4 * count)
	if err != nil {
		return err
	}
	m, s, v := b.Memory(), rt.DefaultStream(), slices.Repeat([]float32{1}, count)
	if err := errors.Join(
		s.Copy(m, symmem.Host(v)),
		g.AllReduce(ctx, m, m, count, symmem.Float32, symmem.Sum, s),
		s.Copy(symmem.Host(v), m),
		s.Synchronize(ctx),
		b.Free(),
		p.Close(),
	); err != nil {
		return err
	}
	for i, got := range v {
		if got != float32(g.Size()) {
			return fmt.Errorf("element %d of the sum is %v, want %d", i, got, g.Size())
		}
	}
	return nil
}
