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
		const tokens = 2 // per rank, so that no memory is empty
		c.MaxTokens = max(c.MaxTokens, tokens)
		c.tokens[0], c.tokens[1] = c.drawTokens(tokens), c.drawTokens(tokens)
		valid := c.args()
		const missingBytes = 128 // arbitrary
		tooShort, err := valid.Recv.Slice(0, valid.Recv.Bytes()-missingBytes)
		c.ok(err)
		for _, row := range []struct {
			name   string
			change func(valid *symmem.RouteArgs)
			want   error
		}{
			{
				name:   "more than 16 experts per token",
				change: func(a *symmem.RouteArgs) { a.TopK = 17 }, want: symmem.ErrInvalid,
			},
			{
				name:   "no experts per token",
				change: func(a *symmem.RouteArgs) { a.TopK = 0 }, want: symmem.ErrInvalid,
			},
			{
				name:   "more than 512 experts",
				change: func(a *symmem.RouteArgs) { a.Experts = 513 }, want: symmem.ErrInvalid,
			},
			{
				name:   "more tokens than allowed",
				change: func(a *symmem.RouteArgs) { a.Tokens = a.MaxTokens + 1 },
				want:   symmem.ErrInvalid,
			},
			{
				name:   "rows that are no multiple of 16 bytes",
				change: func(a *symmem.RouteArgs) { a.Hidden++ }, want: symmem.ErrInvalid,
			},
			{
				name:   "negative scales",
				change: func(a *symmem.RouteArgs) { a.Scales = -1 }, want: symmem.ErrInvalid,
			},
			{
				name:   "no tokens allowed",
				change: func(a *symmem.RouteArgs) { a.MaxTokens = 0 }, want: symmem.ErrInvalid,
			},
			{
				name:   "missing ids",
				change: func(a *symmem.RouteArgs) { a.IDs = symmem.Memory{} },
				want:   symmem.ErrOutOfRange,
			},
			{
				name:   "ids in the output",
				change: func(a *symmem.RouteArgs) { a.IDs = a.Recv }, want: symmem.ErrInvalid,
			},
			{
				name:   "an output that is too small",
				change: func(a *symmem.RouteArgs) { a.Recv = tooShort }, want: symmem.ErrOutOfRange,
			},
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
	const ranks = 2
	runRoutes(t, []int{ranks}, o, func(c *routeCase) {
		c.drawShape()
		c.Experts, c.owners = 4, []int{0, 0, 1, 1} // two experts per rank
		c.tokens[0], c.tokens[1] = c.drawTokens(1), c.drawTokens(1)
		a := c.args()
		a.Experts += c.Rank() // 5 on rank 1
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

func TestRouteNamesMissingRank(t *testing.T) {
	const ranks, missingRank = 3, 2
	const seed = 1 // arbitrary
	for _, operation := range []symmem.Operation{symmem.OpDispatch, symmem.OpCombine} {
		t.Run(operation.String(), func(t *testing.T) {
			ready, done := newGate(ranks), newGate(ranks) // wait returns when all ranks have called it
			runRanks(t, ranks, symmem.Options{Path: symmem.PathAuto}, func(r *rank) {
				g, err := r.Join(r.ctx, "late", r.World().Ranks())
				r.ok(err)
				c := newRouteCase(r, seed)
				c.drawShape()
				a := c.args()
				if operation == symmem.OpCombine {
					a = c.combineArgs(&a)
				}

				r.ok(c.pools[1].Register(r.ctx, g))
				ready.wait(r)
				isCaller := r.Rank() != missingRank
				if isCaller {
					r.ok(g.SetTimeout(time.Second))
					err := r.Interop().Do(r.ctx, g, symmem.Call{Operation: operation, Route: &a}, nil)
					err = cmp.Or(err, r.DefaultStream().Synchronize(r.ctx))
					r.wantTimeout(err, missingRank)
				}

				done.wait(r)
				if isCaller && os.Getenv(backendVariable) != "" { // the host backend keeps Recv
					c.checkFailedRoute(operation, &a)
				}

				r.ok(r.World().Barrier(r.ctx, nil)) // the CUDA context is still usable
				r.synchronize()
			})
		})
	}
}

// checkFailedRoute checks that a failed call has invalidated its output. Dispatch sets token counts
// to 0 and expert ids to -1, whose bytes are 0xff. Combine sets all bytes to 0xff.
func (c *routeCase) checkFailedRoute(o symmem.Operation, a *symmem.RouteArgs) {
	if a.Recv.Bytes() == 0 {
		return
	}

	poisoned := read[uint8](c.rank, a.Recv)
	if o == symmem.OpDispatch {
		const wordBytes = 4 // of a count or an id
		ranks := len(c.tokens)
		layout := c.Layout(ranks)
		counts := poisoned[layout.Counts:][:wordBytes*ranks]
		for _, v := range counts {
			if v != 0 {
				c.failf("the counts of a failed dispatch have the bytes %v, want 0", counts)
			}
		}

		poisoned = poisoned[layout.IDs:][:int64(ranks*c.TopK)*c.MaxTokens*wordBytes]
	}

	for i, v := range poisoned {
		if v != 0xff {
			c.failf("byte %d is %#x after a failed %v, want 0xff", i, v, o)
		}
	}
}
