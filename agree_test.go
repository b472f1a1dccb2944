package symmem_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"symmem"
)

// allocateDifferentSizes makes the ranks diverge. It requests two buffers. The size of the first
// differs between the ranks.
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

// TestDefaultCheckLevel opens a world without a check level. The ranks must compare every call if
// the backend compares without cost, and otherwise only registrations.
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
	const count = 8
	m := r.unregistered(4 * count)
	op := []symmem.ReduceOp{symmem.Min, symmem.Max}[r.Rank()]
	r.ok(r.World().AllReduce(r.ctx, m, m, count, symmem.Float32, op, nil))
	r.synchronize()
}

// TestCheckOffComparesNothing makes the ranks diverge in a world with the level CheckOff. No call
// may fail or compare anything, not even Check.
func TestCheckOffComparesNothing(t *testing.T) {
	runRanks(t, 2, symmem.Options{Check: symmem.CheckOff}, func(r *rank) {
		p := r.pool()
		allocateDifferentSizes(r, p)
		r.ok(p.Register(r.ctx, r.World()))
		r.ok(r.World().Check(r.ctx))
		reduceDifferently(r)
		if n := r.World().Stats().Agreements; n != 0 { // each comparison is an agreement
			r.failf("Agreements = %d, want 0", n)
		}
	})
}

// TestCheckRegistrationComparesHistories makes the pools of the ranks diverge at the level
// CheckRegistration. A collective on unregistered memory must not notice. Each of the other calls
// compares the histories of the pools, so it must report the first different event.
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
				err := call(r, p)
				texts.add(r, r.wantDivergence(err))
			})
			const firstDifferentEvent = "alloc 512 B" // as on rank 0
			if text := texts.requireSame(t, 2); !strings.Contains(text, firstDifferentEvent) {
				t.Errorf("got error %q, want one with %q", text, firstDifferentEvent)
			}
		})
	}
}

// checkOften makes the ranks compare in the background much more often than by default.
var checkOften = symmem.Options{
	Check: symmem.CheckRegistration, CheckInterval: time.Millisecond,
}

// TestBackgroundCheckReportsDivergence makes pools diverge and then only calls barriers. The check
// in the background must make a barrier fail, with the same error on all ranks.
func TestBackgroundCheckReportsDivergence(t *testing.T) {
	var texts errorTexts
	runRanks(t, 3, checkOften, func(r *rank) {
		allocateDifferentSizes(r, r.pool())
		// Barriers compare nothing at this level, so only the background check can fail.
		const limit = 20 * time.Second // much longer than the interval of the checks
		var err error
		for begin := time.Now(); err == nil && time.Since(begin) < limit; {
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

// TestBackgroundCheckAllowsRanksToLag makes the same requests on both ranks, but each rank at its
// speed. The checks in the background must not report the rank that has made fewer requests yet.
func TestBackgroundCheckAllowsRanksToLag(t *testing.T) {
	const checks = 5
	runRanks(t, 2, checkOften, func(r *rank) {
		p := r.pool()
		before := r.World().Stats().Agreements
		for r.World().Stats().Agreements < before+checks {
			b := r.alloc(p, 4096)
			r.ok(b.Free())
		}

		r.ok(r.World().Cause(r.ctx))
	})
}

// TestCheckFindsDivergenceBeforeRegistration compares pools that have no registered memory.
func TestCheckFindsDivergenceBeforeRegistration(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		r.alloc(p, 4096) // the same event on both ranks
		r.ok(r.World().Check(r.ctx))
		if n := r.World().Stats().Agreements; n != 1 {
			r.failf("Agreements = %d, want 1", n)
		}

		allocateDifferentSizes(r, p)
		d := r.wantDivergence(r.World().Check(r.ctx))
		if d.Position != 2 { // the first request of allocateDifferentSizes is event 2
			r.failf("Position = %d, want 2", d.Position)
		}

		if d.Group != r.World().ID() || len(d.Sides) != 2 {
			r.failf("got %+v, want two sides in group %s", d, r.World().ID())
		}
	})
}

// TestDivergenceNamesCallSites checks that the error shows the line of each rank's allocation. The
// scope allocates before the divergence, with an equal size on both ranks.
func TestDivergenceNamesCallSites(t *testing.T) {
	const wantSite = "rank_test.go:" // the file of rank.alloc, which calls Alloc
	var texts errorTexts
	runRanks(t, 2, symmem.Options{CallSites: true}, func(r *rank) {
		p := r.pool()
		r.ok(p.With(r.ctx, r.World(), func(s *symmem.Scope) error {
			_, err := s.Alloc(4096)
			return err
		}))
		allocateDifferentSizes(r, p)
		err := r.World().Check(r.ctx)
		for number, side := range r.wantDivergence(err).Ranks() {
			if !strings.Contains(side.Site, wantSite) {
				r.failf("the site of rank %d is %q, want a line of %s", number, side.Site, wantSite)
			}
		}

		texts.add(r, err)
	})
	if text := texts.requireSame(t, 2); !strings.Contains(text, wantSite) {
		t.Errorf("got error %q, want one that names a line of %s", text, wantSite)
	}
}

// TestDivergenceOmitsCallSitesByDefault makes the ranks diverge without the option CallSites.
func TestDivergenceOmitsCallSitesByDefault(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		allocateDifferentSizes(r, r.pool())
		for number, side := range r.wantDivergence(r.World().Check(r.ctx)).Ranks() {
			if side.Site != "" {
				r.failf("the site of rank %d is %q, want none", number, side.Site)
			}
		}
	})
}

// TestSetCheckWhileGroupFails changes the level of the Runtime while rank 0 makes one of its groups
// fail. SetCheck must succeed.
func TestSetCheckWhileGroupFails(t *testing.T) {
	runRanks(t, 2, symmem.Options{Check: symmem.CheckOff}, func(r *rank) {
		g := r.split(r.World(), 0)
		if r.Rank() == 0 {
			symmem.Fail(g, &symmem.DivergenceError{})
		}

		r.ok(r.SetCheck(r.ctx, symmem.CheckRegistration))
	})
}

// TestCheckAfterDeadlineBlamesNoRank calls Check on rank 0 only, with a deadline in the past. Both
// ranks must return a TimeoutError. It must not list rank 1 as missing, because rank 1 had no time.
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
