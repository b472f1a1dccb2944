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
	runRoutes(t, []int{2}, symmem.Options{Path: symmem.PathAuto}, func(c *routeCase) {
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
			{"rows with a part of 16 bytes", func(a *symmem.RouteArgs) { a.Hidden++ }, symmem.ErrInvalid},
			{"negative scales", func(a *symmem.RouteArgs) { a.Scales = -1 }, symmem.ErrInvalid},
			{"an empty group of tokens", func(a *symmem.RouteArgs) { a.MaxTokens = 0 }, symmem.ErrInvalid},
			{
				"ids that are missing", func(a *symmem.RouteArgs) { a.IDs = symmem.Memory{} },
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
		c.Experts, c.owners = 4, []int{0, 0, 1, 1}
		c.tokens[0], c.tokens[1] = c.drawTokens(1), c.drawTokens(1)
		a := c.args()
		a.Experts += c.Rank()
		err := c.World().Dispatch(c.ctx, a, nil)
		if err == nil {
			err = c.DefaultStream().Synchronize(c.ctx)
		}
		e := c.wantDivergence(err)
		for _, want := range []string{"Dispatch", "of 4 experts", "of 5 experts"} {
			if !strings.Contains(e.Error(), want) {
				c.failf("got %v, want an error with %q", err, want)
			}
		}
	})
}

// TestRouteNamesMissingRank dispatches on two of three ranks.
func TestRouteNamesMissingRank(t *testing.T) {
	for _, operation := range []symmem.Operation{symmem.OpDispatch, symmem.OpCombine} {
		t.Run(operation.String(), func(t *testing.T) {
			ready, done := newGate(3), newGate(3)
			runRanks(t, 3, symmem.Options{Path: symmem.PathAuto}, func(r *rank) {
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
				if r.Rank() < 2 {
					r.ok(g.SetTimeout(time.Second))
					err := r.Interop().Do(r.ctx, g, symmem.Call{Operation: operation, Route: &a}, nil)
					err = cmp.Or(err, r.DefaultStream().Synchronize(r.ctx))
					r.wantTimeout(err, 2)
				}
				done.wait(r)
				if r.Rank() < 2 && os.Getenv(backendVariable) != "" {
					c.checkFailedRoute(operation, &a)
				}
				r.ok(r.World().Barrier(r.ctx, nil)) // the CUDA context is still usable
				r.synchronize()
			})
		})
	}
}

// checkFailedRoute checks that no row looks like a result.
func (c *routeCase) checkFailedRoute(o symmem.Operation, a *symmem.RouteArgs) {
	if a.Recv.Bytes() == 0 {
		return
	}
	got := read[uint8](c.rank, a.Recv)
	end := int64(len(got))
	if o == symmem.OpDispatch {
		layout := c.Layout(len(c.tokens))
		end = layout.IDs + int64(len(c.tokens)*c.TopK)*c.MaxTokens*4
		for i, v := range got[layout.Counts:] {
			if v != 0 && i < 4*len(c.tokens) {
				c.failf("the counts of a failed dispatch are %v, want 0", got[layout.Counts:])
			}
		}
		got = got[layout.IDs:]
		end -= layout.IDs
	}
	for i, v := range got[:end] {
		if v != 0xff {
			c.failf("byte %d is %#x after a failed call, want poison", i, v)
		}
	}
}
