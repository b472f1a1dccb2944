package symmem_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem"
)

// callerLine returns the file and line of its caller, in the format of call sites in errors.
func callerLine() string {
	_, file, line, _ := runtime.Caller(1)
	return fmt.Sprintf("%s:%d", file, line)
}

func TestValueReductions(t *testing.T) {
	runRanks(t, 3, symmem.Options{}, func(r *rank) {
		g := r.World()
		r.ok(g.Agree(r.ctx, "batch size", 7))
		r.ok(g.Agree(r.ctx, "batch size", math.MinInt64))
		for _, c := range []struct {
			name string
			call func(context.Context, string, int64) (int64, error)
			args [3]int64
			want int64
		}{
			{"minimum", g.Min, [3]int64{5, -3, 8}, -3},
			{"maximum", g.Max, [3]int64{5, -3, 8}, 8},
			{"all negative", g.Max, [3]int64{-5, -3, math.MinInt64}, -3},
			{"sum", g.Sum, [3]int64{5, -3, 8}, 10},
			{"sum that wraps around", g.Sum, [3]int64{math.MaxInt64, 1, 0}, math.MinInt64},
		} {
			got, err := c.call(r.ctx, c.name, c.args[r.Rank()])
			if r.ok(err); got != c.want {
				r.failf("%s of %v = %d, want %d", c.name, c.args, got, c.want)
			}
		}

		for _, c := range []struct {
			args     [3]bool
			any, all bool
		}{
			{[3]bool{}, false, false},
			{[3]bool{false, true, false}, true, false},
			{[3]bool{true, true, true}, true, true},
		} {
			anyTrue, err := g.Any(r.ctx, "busy", c.args[r.Rank()])
			r.ok(err)
			allTrue, err := g.All(r.ctx, "busy", c.args[r.Rank()])
			r.ok(err)
			if anyTrue != c.any || allTrue != c.all {
				r.failf("%v: Any = %v, All = %v; want %v, %v", c.args, anyTrue, allTrue, c.any, c.all)
			}
		}
	})
}

// TestAgreeValueMismatch checks the error of Agree, and that the group remains usable afterwards.
func TestAgreeValueMismatch(t *testing.T) {
	runRanks(t, 3, symmem.Options{CallSites: true}, func(r *rank) {
		g := r.split(r.World(), 0)
		for i := range int64(11) {
			r.ok(g.Agree(r.ctx, "step", i))
		}

		var err error
		sites := map[int]string{}
		for k := range 2 { // ranks 0 and 1 enter the first branch, rank 2 the second
			if k == r.Rank()/2 {
				err = g.Agree(r.ctx, "batch size", int64(8+k))
				sites[r.Rank()] = callerLine()
			}
		}

		d := r.wantDivergence(err)
		if d.Kind != symmem.DivergedValue || !slices.Equal(d.Deviant, []int{2}) || len(d.Sides) != 2 {
			r.failf("got %+v, want two sides of values and only rank 2 to deviate", d)
		}

		own := d.Ranks()[r.Rank()]
		if !slices.Equal(d.Sides[0].Ranks, []int{0, 1}) || d.Sides[0].Event != "Agree of 8" ||
			d.Sides[1].Event != "Agree of 9" || !isLineBefore(own.Site, sites[r.Rank()]) {
			r.failf("got the sides %+v, want Agree of 8 and 9 and the line before %s", d.Sides,
				sites[r.Rank()])
		}

		if b := own.Before; len(b) != 10 || !strings.HasPrefix(b[0], `"step": Agree of 10 at `) ||
			!strings.Contains(b[9], `"step": Agree of 1 at `) {
			r.failf("got previous events %q, want the last 10 calls of Agree", b)
		}

		want := fmt.Sprintf(`group %s: ranks differ in value "batch size", call 1: `+
			`ranks 0-1 have Agree of 8 at %s; rank 2 has Agree of 9 at `, g.ID(), d.Sides[0].Site)
		if !strings.HasPrefix(err.Error(), want) {
			r.failf("got %q, want %q", err, want)
		}

		_, err = map[bool]func(context.Context, string, int64) (int64, error){
			true: g.Min, false: g.Max,
		}[r.Rank() == 0](r.ctx, "batch size", 5)
		d = r.wantDivergence(err)
		if !slices.Equal(d.Deviant, []int{0}) || d.Sides[0].Event != "Min of 5" {
			r.failf("got %+v, want only rank 0 to deviate, with Min of 5", d)
		}

		r.ok(g.Cause(r.ctx))
		r.ok(g.Agree(r.ctx, "batch size", 8))
		r.checkSum(g, r.window(r.pool(), 4096))
		r.ok(g.Close())
	})
}

func isLineBefore(site, after string) bool {
	var file string
	var line int
	colon := strings.LastIndexByte(after, ':')
	file = after[:colon]
	_, _ = fmt.Sscanf(after[colon+1:], "%d", &line)
	return site == fmt.Sprintf("%s:%d", file, line-1)
}

// TestMissingRankFailsValue makes rank 1 call Agree with a different name. The other ranks' errors
// must report the value that rank 1 is waiting for.
func TestMissingRankFailsValue(t *testing.T) {
	const elsewhere = `in value "prefill" for`
	wait := newSharedDeadline(func(w symmem.LateWarning) bool {
		return slices.Equal(w.Ranks, []int{1}) && strings.Contains(w.Activity[1], elsewhere)
	})
	runWithFault(t, 3, wait.options(), func(r *rank) {
		g := r.split(r.World(), 0)
		ctx, name := wait.context(r), "decode"
		if r.Rank() == 1 {
			ctx, name = r.ctx, "prefill"
		}

		err := g.Agree(ctx, name, 1)
		var late *symmem.TimeoutError
		if r.Rank() != 1 && (!errors.As(err, &late) || !slices.Equal(late.Missing, []int{1}) ||
			!strings.Contains(late.Activity[1], elsewhere)) {
			r.failf("got %v, want a TimeoutError that names rank 1 and its value", err)
		}

		if r.Rank() == 1 && err == nil {
			r.failf("Agree succeeded without the other ranks")
		}

		r.wantErr(g.Agree(r.ctx, "decode", 1), g.Cause(r.ctx))
	})
}

func TestValueNamesClosedRank(t *testing.T) {
	runWithFault(t, 2, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		if r.Rank() == 1 {
			r.ok(g.Close())
			r.wantErr(g.Agree(r.ctx, "batch size", 1), symmem.ErrClosed)
			return
		}

		var deadlock *symmem.DeadlockError
		if err := g.Agree(r.ctx, "batch size", 1); !errors.As(err, &deadlock) {
			r.failf("got %v, want a DeadlockError", err)
		}
	})
}

func TestInvalidValueNames(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		g := r.World()
		for _, name := range []string{"", strings.Repeat("n", symmem.MaxValueName+1)} {
			r.wantErr(g.Agree(r.ctx, name, 1), symmem.ErrInvalid)
		}

		for i := range symmem.MaxValueNames {
			r.ok(g.Agree(r.ctx, fmt.Sprint(i), 1))
		}

		r.wantErr(g.Agree(r.ctx, "one more", 1), symmem.ErrInvalid)
		r.ok(g.Agree(r.ctx, "7", 1))
	})
}

// TestValueNamesAreIndependent calls Agree with two names on two goroutines of each rank. The order
// of the calls differs between ranks.
func TestValueNamesAreIndependent(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		names := []string{"first", "second"}
		results := make(chan error, 2)
		for k := range names {
			name := names[(k+r.Rank())%2]
			go func() {
				var err error
				for i := range int64(200) {
					err = errors.Join(err, r.World().Agree(r.ctx, name, i))
				}

				results <- err
			}()
		}

		r.ok(errors.Join(<-results, <-results))
	})
}

// TestValueCallsOfSameNameAreOrdered calls Sum with one name on several goroutines of each rank.
func TestValueCallsOfSameNameAreOrdered(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		results := make(chan error, 4)
		for range 4 {
			go func() {
				var err error
				for range 50 {
					got, e := r.World().Sum(r.ctx, "shared", 1)
					if e == nil && got != 2 {
						e = fmt.Errorf("Sum = %d, want 2", got)
					}

					err = errors.Join(err, e)
				}

				results <- err
			}()
		}

		r.ok(errors.Join(<-results, <-results, <-results, <-results))
	})
}

// TestRandomValueMismatch runs random programs of value calls. In each program, one rank deviates
// once, with a different value or operation. The error on every rank must name that rank and the
// line of its call.
func TestRandomValueMismatch(t *testing.T) {
	const ranks, programs = 3, 300
	runRanks(t, ranks, symmem.Options{}, func(r *rank) {
		draw := rand.New(rand.NewPCG(23, 1)) // draws the same numbers on every rank
		for program := range programs {
			steps, wrongRank := 1+draw.IntN(8), draw.IntN(ranks)
			wrongStep := draw.IntN(steps)
			for step := range steps {
				name, value := fmt.Sprint("name ", draw.IntN(5)), draw.Int64()
				kind := draw.IntN(2)
				if step != wrongStep {
					r.ok(r.World().Agree(r.ctx, name, value))
					continue
				}

				var err error
				var line string
				switch {
				case r.Rank() != wrongRank:
					err = r.World().Agree(r.ctx, name, value)
					line = callerLine()
				case kind == 0:
					err = r.World().Agree(r.ctx, name, value+1)
					line = callerLine()
				default:
					_, err = r.World().Max(r.ctx, name, value)
					line = callerLine()
				}

				d := r.wantDivergence(err)
				if !slices.Equal(d.Deviant, []int{wrongRank}) ||
					!isLineBefore(d.Ranks()[r.Rank()].Site, line) ||
					d.Ranks()[wrongRank].Site == d.Ranks()[(wrongRank+1)%ranks].Site {
					r.failf("program %d: got %+v, want only rank %d to deviate, and its line", program, d,
						wrongRank)
				}
			}
		}
	})
}

func TestLateRankIsReportedDuringValue(t *testing.T) {
	warned := make(chan symmem.LateWarning, 1)
	o := symmem.Options{WarnAfter: 20 * time.Millisecond, OnLate: func(w symmem.LateWarning) {
		if !strings.HasPrefix(w.InCall, `value "batch size" 1`) {
			return // on a busy machine a rank may also be late for an earlier call
		}

		select {
		case warned <- w:
		default:
		}
	}}
	runRanks(t, 2, o, func(r *rank) {
		if r.Rank() == 1 {
			if w := <-warned; !slices.Equal(w.Ranks, []int{1}) {
				r.failf("got the warning %+v, want one about rank 1 only", w)
			}
		}

		r.ok(r.World().Agree(r.ctx, "batch size", 8))
	})
}

func TestValueDoesNotAllocate(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		r.expectNoAllocations(0, func() { r.ok(r.World().Agree(r.ctx, "batch size", 8)) })
	})
}
