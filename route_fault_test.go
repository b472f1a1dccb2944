package symmem_test

import (
	"cmp"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"symmem"
)

func TestInvalidRoutes(t *testing.T) {
	const ranks = 2
	runRoutes(t, []int{ranks}, symmem.Options{Path: symmem.PathAuto}, func(c *routeCase) {
		c.drawShape()
		c.MaxTokens = max(c.MaxTokens, 2)
		c.tokens[0], c.tokens[1] = c.drawTokens(2), c.drawTokens(2)
		valid := c.args()
		for _, row := range []struct {
			name   string
			change func(a *symmem.RouteArgs)
			want   error
		}{
			{"too many experts per token", func(a *symmem.RouteArgs) { a.TopK = 17 }, symmem.ErrInvalid},
			{"no experts per token", func(a *symmem.RouteArgs) { a.TopK = 0 }, symmem.ErrInvalid},
			{"too many experts", func(a *symmem.RouteArgs) { a.Experts = 513 }, symmem.ErrInvalid},
			{
				"more tokens than allowed", func(a *symmem.RouteArgs) { a.Tokens = a.MaxTokens + 1 },
				symmem.ErrInvalid,
			},
			{"rows not a multiple of 16 B", func(a *symmem.RouteArgs) { a.Hidden++ }, symmem.ErrInvalid},
			{"negative scales", func(a *symmem.RouteArgs) { a.Scales = -1 }, symmem.ErrInvalid},
			{"no tokens allowed", func(a *symmem.RouteArgs) { a.MaxTokens = 0 }, symmem.ErrInvalid},
			{
				"missing ids", func(a *symmem.RouteArgs) { a.IDs = symmem.Memory{} },
				symmem.ErrOutOfRange,
			},
			{"ids in the output", func(a *symmem.RouteArgs) { a.IDs = a.Recv }, symmem.ErrInvalid},
			{"an output that is too small", func(a *symmem.RouteArgs) {
				var err error
				a.Recv, err = a.Recv.Slice(0, a.Recv.Bytes()-128)
				c.ok(err)
			}, symmem.ErrOutOfRange},
		} {
			a := valid
			row.change(&a)
			if err := c.World().Dispatch(c.ctx, a, nil); !errors.Is(err, row.want) {
				c.failf("%s: got %v, want %v", row.name, err, row.want)
			}
		}
		c.ok(c.World().Dispatch(c.ctx, valid, nil))
		c.checkDispatch(&valid)
	})
}

func TestDifferentRoutesDiverge(t *testing.T) {
	o := symmem.Options{Path: symmem.PathAuto, Check: symmem.CheckEvery}
	runRoutes(t, []int{2}, o, func(c *routeCase) {
		c.drawShape()
		c.Experts, c.owners = 4, []int{0, 0, 1, 1} // two experts on each rank
		c.tokens[0], c.tokens[1] = c.drawTokens(1), c.drawTokens(1)
		a := c.args()
		a.Experts += c.Rank()
		err := c.World().Dispatch(c.ctx, a, nil)
		if err == nil {
			err = c.DefaultStream().Synchronize(c.ctx)
		}
		divergence := c.wantDivergence(err)
		for _, want := range []string{"Dispatch", "of 4 experts", "of 5 experts"} {
			if !strings.Contains(divergence.Error(), want) {
				c.failf("got %v, want an error with %q", err, want)
			}
		}
	})
}

// TestRouteNamesMissingRank dispatches or combines on two of three ranks. The calls must time out
// with an error that names the third rank.
func TestRouteNamesMissingRank(t *testing.T) {
	const ranks, missingRank = 3, 2
	for _, operation := range []symmem.Operation{symmem.OpDispatch, symmem.OpCombine} {
		t.Run(operation.String(), func(t *testing.T) {
			ready, done := newGate(ranks), newGate(ranks)
			runRanks(t, ranks, symmem.Options{Path: symmem.PathAuto}, func(r *rank) {
				g, err := r.Join(r.ctx, "late", r.World().Ranks())
				r.ok(err)
				c := newRouteCase(r, 1)
				c.drawShape()
				a := c.args()
				if operation == symmem.OpCombine {
					a = c.combineArgs(&a)
				}
				r.ok(c.pools[1].Register(r.ctx, g))
				ready.wait(r)
				if r.Rank() != missingRank {
					r.ok(g.SetTimeout(time.Second))
					err := r.Interop().Do(r.ctx, g, symmem.Call{Operation: operation, Route: &a}, nil)
					err = cmp.Or(err, r.DefaultStream().Synchronize(r.ctx))
					r.wantTimeout(err, missingRank)
				}
				done.wait(r)
				if r.Rank() != missingRank && os.Getenv(backendVariable) != "" {
					c.checkFailedRoute(operation, &a)
				}
				r.ok(r.World().Barrier(r.ctx, nil)) // checks that the CUDA context is still usable
				r.synchronize()
			})
		})
	}
}

// checkFailedRoute checks that the output of a failed call does not look like a result. A dispatch
// must have set the counts of tokens to 0 and the ids of experts to -1; a combine must have set
// all bytes to 0xff.
func (c *routeCase) checkFailedRoute(o symmem.Operation, a *symmem.RouteArgs) {
	if a.Recv.Bytes() == 0 {
		return
	}
	poisoned := read[uint8](c.rank, a.Recv)
	if o == symmem.OpDispatch {
		layout, ranks := c.Layout(len(c.tokens)), len(c.tokens)
		for _, v := range poisoned[layout.Counts:][:4*ranks] {
			if v != 0 {
				c.failf("the counts of a failed dispatch are %v, want 0", poisoned[layout.Counts:])
			}
		}
		poisoned = poisoned[layout.IDs:][:int64(ranks*c.TopK)*c.MaxTokens*4]
	}
	for i, v := range poisoned {
		if v != 0xff {
			c.failf("byte %d is %#x after a failed call, want 0xff", i, v)
		}
	}
}
