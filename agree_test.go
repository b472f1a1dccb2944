package symmem_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"symmem"
)

// allocateDifferentSizes makes the ranks diverge. Of its two requests, the first has a different
// size on each rank.
func allocateDifferentSizes(r *rank, p *symmem.Pool) {
	r.alloc(p, int64(512*(1+r.Rank())))
	r.alloc(p, 4096)
}

func TestCheckLevelNames(t *testing.T) {
	for level, name := range map[symmem.CheckLevel]string{
		symmem.CheckDefault: "default", symmem.CheckOff: "off",
		symmem.CheckRegistration: "registration", symmem.CheckEvery: "every",
	} {
		if got := level.String(); got != name {
			t.Errorf("CheckLevel(%d).String() = %q, want %q", level, got, name)
		}
		if got, err := symmem.ParseCheckLevel(name); err != nil || got != level {
			t.Errorf("ParseCheckLevel(%q) = %v, %v; want %v", name, got, err, level)
		}
	}
	if _, err := symmem.ParseCheckLevel("sometimes"); err == nil {
		t.Error("ParseCheckLevel of an unknown name succeeded, want an error")
	}
	if got := symmem.CheckLevel(9).String(); got != "CheckLevel(?)" {
		t.Errorf("CheckLevel(9).String() = %q, want %q", got, "CheckLevel(?)")
	}
}

func TestDefaultCheckLevel(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		want := symmem.CheckRegistration
		if r.Device().CheckIsFree {
			want = symmem.CheckEvery
		}
		if r.Check() != want {
			r.failf("Check = %v, want %v", r.Check(), want)
		}
	})
}

// reduceDifferently makes an all-reduce whose reduction differs between the two ranks.
func reduceDifferently(r *rank) {
	m := r.unregistered(32)
	op := []symmem.ReduceOp{symmem.Min, symmem.Max}[r.Rank()]
	r.ok(r.World().AllReduce(r.ctx, m, m, 8, symmem.Float32, op, nil))
	r.synchronize()
}

func TestCheckOffComparesNothing(t *testing.T) {
	runRanks(t, 2, symmem.Options{Check: symmem.CheckOff}, func(r *rank) {
		p := r.pool()
		allocateDifferentSizes(r, p)
		r.ok(p.Register(r.ctx, r.World()))
		r.ok(r.World().Check(r.ctx))
		reduceDifferently(r)
		if n := r.World().Stats().Agreements; n != 0 {
			r.failf("Agreements = %d, want 0", n)
		}
	})
}

// TestCheckRegistrationComparesHistories checks which calls compare the histories of pools at the
// level CheckRegistration. A collective on unregistered memory does not.
func TestCheckRegistrationComparesHistories(t *testing.T) {
	const neverInBackground = -1
	o := symmem.Options{Check: symmem.CheckRegistration, CheckInterval: neverInBackground}
	for name, call := range map[string]func(*rank, *symmem.Pool) error{
		"Register": func(r *rank, p *symmem.Pool) error { return p.Register(r.ctx, r.World()) },
		"Reserve":  func(r *rank, p *symmem.Pool) error { return p.Reserve(r.ctx, mib, r.World()) },
		"Trim":     func(r *rank, p *symmem.Pool) error { return p.Trim(r.ctx, 0) },
		"Check":    func(r *rank, _ *symmem.Pool) error { return r.World().Check(r.ctx) },
		"the first collective on the memory": func(r *rank, p *symmem.Pool) error {
			return r.sum(r.World(), r.alloc(p, 4096))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var texts errorTexts
			runRanks(t, 2, o, func(r *rank) {
				p := r.pool()
				allocateDifferentSizes(r, p)
				reduceDifferently(r)
				texts.add(r, r.wantDivergence(call(r, p)))
			})
			if text := texts.requireSame(t, 2); !strings.Contains(text, "alloc 512 B") {
				t.Errorf("got error %q, want one with the first different event", text)
			}
		})
	}
}

func TestBackgroundCheckReportsDivergence(t *testing.T) {
	var texts errorTexts
	runRanks(t, 3, symmem.Options{
		Check: symmem.CheckRegistration, CheckInterval: time.Millisecond,
	}, func(r *rank) {
		allocateDifferentSizes(r, r.pool())
		// Barriers compare nothing at this level, so only the background check can end the loop.
		var err error
		for err == nil && r.ctx.Err() == nil {
			err = r.World().Barrier(r.ctx, nil)
			if err == nil {
				err = r.DefaultStream().Synchronize(r.ctx)
			}
		}
		texts.add(r, r.wantDivergence(err))
		r.wantDivergence(r.World().Cause(r.ctx))
	})
	texts.requireSame(t, 3)
}

func TestBackgroundCheckAllowsRanksToLag(t *testing.T) {
	runRanks(t, 2, symmem.Options{
		Check: symmem.CheckRegistration, CheckInterval: time.Millisecond,
	}, func(r *rank) {
		p := r.pool()
		before := r.World().Stats().Agreements
		for r.World().Stats().Agreements < before+5 {
			r.ok(r.alloc(p, 4096).Free())
		}
		r.ok(r.World().Cause(r.ctx))
	})
}

func TestCheckFindsDivergenceBeforeRegistration(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		r.alloc(p, 4096)
		r.ok(r.World().Check(r.ctx))
		if n := r.World().Stats().Agreements; n != 1 {
			r.failf("Agreements = %d, want 1", n)
		}
		allocateDifferentSizes(r, p)
		d := r.wantDivergence(r.World().Check(r.ctx))
		if d.Position != 2 || d.Group != r.World().ID() || len(d.Sides) != 2 {
			r.failf("got %+v, want position 2 and two sides", d)
		}
	})
}

func TestDivergenceNamesCallSites(t *testing.T) {
	var texts errorTexts
	runRanks(t, 2, symmem.Options{CallSites: true}, func(r *rank) {
		p := r.pool()
		r.ok(p.With(r.ctx, r.World(), func(s *symmem.Scope) error {
			_, err := s.Alloc(4096)
			return err
		}))
		allocateDifferentSizes(r, p)
		err := r.World().Check(r.ctx)
		for rank, side := range r.wantDivergence(err).Ranks() {
			if !strings.Contains(side.Site, "rank_test.go:") {
				r.failf("rank %d: site %q, want a line of rank_test.go", rank, side.Site)
			}
		}
		texts.add(r, err)
	})
	if text := texts.requireSame(t, 2); !strings.Contains(text, "rank_test.go:") {
		t.Errorf("got error %q, want one that names a line", text)
	}
}

func TestDivergenceOmitsCallSitesByDefault(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		allocateDifferentSizes(r, r.pool())
		for _, side := range r.wantDivergence(r.World().Check(r.ctx)).Ranks() {
			if side.Site != "" {
				r.failf("site %q, want none", side.Site)
			}
		}
	})
}

func TestSetCheckWhileGroupFails(t *testing.T) {
	runRanks(t, 2, symmem.Options{Check: symmem.CheckOff}, func(r *rank) {
		g := r.split(r.World(), 0)
		if r.Rank() == 0 {
			symmem.Fail(g, &symmem.DivergenceError{})
		}
		r.ok(r.SetCheck(r.ctx, symmem.CheckRegistration))
	})
}

// TestCheckAfterDeadlineBlamesNoRank calls Check after the deadline, on rank 0 only. Both ranks
// must return a TimeoutError that does not list rank 1 as missing.
func TestCheckAfterDeadlineBlamesNoRank(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		if r.Rank() == 0 {
			ctx, cancel := context.WithDeadline(r.ctx, time.Unix(0, 0))
			defer cancel()
			r.wantTimeout(g.Check(ctx))
			return
		}
		select {
		case <-g.Ended():
		case <-r.World().Ended(): // rank 0 has failed and aborted the world
		}
		r.wantTimeout(g.Err())
	})
}
