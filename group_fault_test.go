package symmem_test

import (
	"errors"
	"testing"
	"time"

	"symmem"
)

// causeDeadline is longer than a group waits for the cause of another group's fault.
const causeDeadline = 20 * time.Second

// TestTwoGroupsFailAtOnce makes two groups of the same ranks fail at the same time, each on a
// different rank. Each rank then makes a call in both groups on one stream. The second call is
// skipped because the first one failed on that stream, so each group may wait for the cause of
// the other group's fault.
func TestTwoGroupsFailAtOnce(t *testing.T) {
	var texts [2]errorTexts
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		groups := [2]*symmem.Group{r.split(r.World(), 0), r.split(r.World(), 0)}
		b := r.window(r.pool(), 64)
		sum := func(g *symmem.Group) error {
			return g.AllReduce(r.ctx, b.Memory(), b.Memory(), 8, symmem.Int32, symmem.Sum, r.DefaultStream())
		}
		for _, g := range groups {
			r.ok(sum(g))
		}

		r.synchronize()
		r.ok(r.World().Barrier(r.ctx, nil))
		first, second := groups[r.Rank()], groups[1-r.Rank()]
		first.Abort()
		_ = sum(first)
		_ = sum(second)
		for i, g := range groups {
			select {
			case <-g.Ended():
			case <-time.After(causeDeadline):
				r.failf("group %d has not ended", i)
			}

			cause := g.Err()
			if !errors.Is(cause, symmem.ErrAborted) {
				r.failf("group %d: Err() = %v; want ErrAborted", i, cause)
			}

			texts[i].add(r, cause)
		}

		_ = r.DefaultStream().Synchronize(r.ctx)
		for _, g := range groups {
			_ = g.Close()
		}
	})
	for i := range texts {
		texts[i].requireSame(t, 2)
	}
}
