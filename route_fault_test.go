package symmem_test

import (
	"cmp"
	"errors"
	"strings"
	"testing"
	"time"

	"symmem"
)

func TestInvalidRoutes(t *testing.T) {
	const ranks = 2
	runRoutes(t, []int{ranks}, symmem.Options{Path: symmem.PathAuto}, func(c *routeCase) {
		c.drawShape()
		const tokensPerRank = 2 // not 0, which would make arguments empty
		c.MaxTokens = max(c.MaxTokens, tokensPerRank)
		c.tokens[0], c.tokens[1] = c.drawTokens(tokensPerRank), c.drawTokens(tokensPerRank)
		valid := c.args()
		const missingBytes = 128 // arbitrary
		tooShort, err := valid.Recv.Slice(0, valid.Recv.Bytes()-missingBytes)
		c.ok(err)
		for _, row := range []struct {
			name   string
			change func(*symmem.RouteArgs)
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
				name:   "rows that do not consist of units of 16 bytes",
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
			args := valid
			row.change(&args)
			if err := c.World().Dispatch(c.ctx, args, nil); !errors.Is(err, row.want) {
				c.failf("%s: got %v, want %v", row.name, err, row.want)
			}
		}

		c.ok(c.World().Dispatch(c.ctx, valid, nil))
		c.checkDispatch(&valid)
	})
}

// A Dispatch with different numbers of experts on the ranks fails.
func TestDifferentRoutesDiverge(t *testing.T) {
	options := symmem.Options{Path: symmem.PathAuto, Check: symmem.CheckEvery}
	const ranks = 2
	runRoutes(t, []int{ranks}, options, func(c *routeCase) {
		c.drawShape()
		c.Experts = 4
		c.owners = []int{0, 0, 1, 1} // rank by expert
		c.tokens[0], c.tokens[1] = c.drawTokens(1), c.drawTokens(1)
		args := c.args()
		args.Experts += c.Rank() // 5 on rank 1
		err := c.World().Dispatch(c.ctx, args, nil)
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
			beforeCall, afterCall := newGate(ranks), newGate(ranks)
			runRanks(t, ranks, symmem.Options{Path: symmem.PathAuto}, func(r *rank) {
				g, err := r.Join(r.ctx, "routing", r.World().Ranks())
				r.ok(err)
				c := newRouteCase(r, seed)
				c.drawShape()
				args := c.args()
				if operation == symmem.OpCombine {
					args = c.combineArgs(&args)
				}

				registeredPool := c.pools[1]
				r.ok(registeredPool.Register(r.ctx, g))
				beforeCall.wait(r)
				isCaller := r.Rank() != missingRank
				if isCaller {
					r.ok(g.SetTimeout(time.Second))
					err := r.Interop().Do(r.ctx, g, symmem.Call{Operation: operation, Route: &args}, nil)
					err = cmp.Or(err, r.DefaultStream().Synchronize(r.ctx))
					r.wantTimeout(err, missingRank)
				}

				afterCall.wait(r)
				invalidatesOutput := !isHost()
				if isCaller && invalidatesOutput {
					c.checkFailedRoute(operation, &args)
				}

				r.ok(r.World().Barrier(r.ctx, nil)) // the CUDA context is still usable
				r.synchronize()
			})
		})
	}
}

// checkFailedRoute checks the output of a failed call. Dispatch sets token counts to 0 and expert
// ids to -1. Combine sets all bytes to 0xff.
func (c *routeCase) checkFailedRoute(o symmem.Operation, a *symmem.RouteArgs) {
	if a.Recv.Bytes() == 0 {
		return
	}

	output := read[uint8](c.rank, a.Recv)
	if o == symmem.OpCombine {
		wantBytes(c.rank, "output after a failed call", output, 0xff)
		return
	}

	const wordBytes = 4 // of a count or an id
	ranks := len(c.tokens)
	layout := c.Layout(ranks)
	counts := output[layout.Counts:][:wordBytes*ranks]
	ids := output[layout.IDs:][:wordBytes*int64(ranks*c.TopK)*c.MaxTokens]
	const byteOfMinus1 = 0xff
	wantBytes(c.rank, "counts after a failed call", counts, 0)
	wantBytes(c.rank, "ids after a failed call", ids, byteOfMinus1)
}

func wantBytes(r *rank, name string, all []uint8, want uint8) {
	r.t.Helper()
	for i, got := range all {
		if got != want {
			r.failf("byte %d of the %s is %#x, want %#x", i, name, got, want)
		}
	}
}
