package symmem_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"symmem"
)

// All ranks must make the same requests to a pool, and the same collectives. If rank 0 requests 512
// bytes and rank 1 requests 1024 bytes, the ranks have diverged.
//
// Each rank records the requests to a pool as events: the pool's history. The check level decides
// what the ranks compare, to find a divergence: nothing (CheckOff), the histories of pools at some
// calls and in the background (CheckRegistration), or also each collective (CheckEvery). If they
// differ, the ranks get a DivergenceError. Stats().Agreements counts comparisons without a
// difference.

// TestCheckLevelNames converts each check level to its name and back. An unknown name or level must
// have no counterpart.
func TestCheckLevelNames(t *testing.T) {
	for level, name := range map[symmem.CheckLevel]string{
		symmem.CheckDefault:      "default",
		symmem.CheckOff:          "off",
		symmem.CheckRegistration: "registration",
		symmem.CheckEvery:        "every",
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

// TestDefaultCheckLevel opens a world without a check level. The level must be CheckEvery if
// comparing each collective costs nothing with this backend, and otherwise CheckRegistration.
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

// allocateDifferentSizes makes the ranks diverge: the first of two requests has another size on
// each rank. On ranks 0, 1 and 2, it is for 512, 1024 and 1536 bytes.
func allocateDifferentSizes(r *rank, p *symmem.Pool) {
	r.alloc(p, int64(512*(1+r.Rank())))
	r.alloc(p, 4096)
}

// reduceDifferently makes an all-reduce, with the minimum on rank 0 and the maximum on rank 1.
func reduceDifferently(r *rank) {
	const count = 8
	m := r.unregistered(4 * count)
	opByRank := []symmem.ReduceOp{symmem.Min, symmem.Max}
	op := opByRank[r.Rank()]
	r.ok(r.World().AllReduce(r.ctx, m, m, count, symmem.Float32, op, nil))
	r.synchronize()
}

// TestCheckOffComparesNothing makes the ranks diverge at the level CheckOff. All calls must succeed
// without a comparison, even Check.
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

// TestCheckRegistrationComparesHistories makes the ranks diverge at the level CheckRegistration. An
// all-reduce on unregistered memory must succeed, because it compares nothing. Each of the calls
// below compares histories, so it must report the first event that differs.
func TestCheckRegistrationComparesHistories(t *testing.T) {
	const neverInBackground = -1
	o := symmem.Options{Check: symmem.CheckRegistration, CheckInterval: neverInBackground}
	calls := map[string]func(*rank, *symmem.Pool) error{
		"Register": func(r *rank, p *symmem.Pool) error { return p.Register(r.ctx, r.World()) },
		"Reserve":  func(r *rank, p *symmem.Pool) error { return p.Reserve(r.ctx, mib, r.World()) },
		"Trim":     func(r *rank, p *symmem.Pool) error { return p.Trim(r.ctx, 0) },
		"Check":    func(r *rank, _ *symmem.Pool) error { return r.World().Check(r.ctx) },
		"the first collective on the memory": func(r *rank, p *symmem.Pool) error {
			return r.sum(r.World(), r.alloc(p, 4096))
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			var texts errorTexts
			runRanks(t, 2, o, func(r *rank) {
				p := r.pool()
				allocateDifferentSizes(r, p)
				reduceDifferently(r)
				err := call(r, p)
				texts.add(r, r.wantDivergence(err))
			})
			const eventOfRank0 = "alloc 512 B" // the first event that differs
			if text := texts.requireSame(t, 2); !strings.Contains(text, eventOfRank0) {
				t.Errorf("got error %q, want one with %q", text, eventOfRank0)
			}
		})
	}
}

// checkOften makes the ranks compare histories in the background every millisecond. By default,
// they do so every second.
var checkOften = symmem.Options{
	Check: symmem.CheckRegistration, CheckInterval: time.Millisecond,
}

// TestBackgroundCheckReportsDivergence makes the ranks diverge and then only calls barriers. The
// comparison in the background must make a barrier fail, with the same error on all ranks.
func TestBackgroundCheckReportsDivergence(t *testing.T) {
	var texts errorTexts
	runRanks(t, 3, checkOften, func(r *rank) {
		allocateDifferentSizes(r, r.pool())
		err := repeatBarriers(r)
		texts.add(r, r.wantDivergence(err))
		r.wantDivergence(r.World().Cause(r.ctx))
	})
	texts.requireSame(t, 3)
}

// repeatBarriers calls barriers until one fails and returns the error, or nil after 20 seconds. At
// the level CheckRegistration, barriers compare nothing.
func repeatBarriers(r *rank) (err error) {
	const limit = 20 * time.Second // much longer than the interval of the comparisons
	for begin := time.Now(); err == nil && time.Since(begin) < limit; {
		err = r.World().Barrier(r.ctx, nil)
		if err == nil {
			err = r.DefaultStream().Synchronize(r.ctx)
		}
	}

	return err
}

// TestBackgroundCheckAllowsRanksToLag makes the same requests on both ranks, which may be at
// different requests at the time of a comparison. The comparisons in the background must succeed.
func TestBackgroundCheckAllowsRanksToLag(t *testing.T) {
	const comparisons = 5
	runRanks(t, 2, checkOften, func(r *rank) {
		p := r.pool()
		before := r.World().Stats().Agreements
		for r.World().Stats().Agreements < before+comparisons {
			b := r.alloc(p, 4096)
			r.ok(b.Free())
		}

		r.ok(r.World().Cause(r.ctx))
	})
}

// TestCheckFindsDivergenceBeforeRegistration calls Check although the pool has no registered
// memory. Check must succeed after the same request on both ranks, and then find a divergence.
func TestCheckFindsDivergenceBeforeRegistration(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		r.alloc(p, 4096) // event 1, the same on both ranks
		r.ok(r.World().Check(r.ctx))
		if n := r.World().Stats().Agreements; n != 1 {
			r.failf("Agreements = %d, want 1", n)
		}

		allocateDifferentSizes(r, p)
		d := r.wantDivergence(r.World().Check(r.ctx))
		const wantPosition = 2 // of the event for the first request of allocateDifferentSizes
		if d.Position != wantPosition {
			r.failf("Position = %d, want %d", d.Position, wantPosition)
		}

		if d.Group != r.World().ID() || len(d.Sides) != 2 {
			r.failf("got %+v, want two sides in group %s", d, r.World().ID())
		}
	})
}

// TestDivergenceNamesCallSites makes the ranks diverge with the option CallSites. The error must
// show the file and line of each rank's request.
func TestDivergenceNamesCallSites(t *testing.T) {
	const wantSite = "rank_test.go:" // the tests request buffers in this file, in rank.alloc
	var texts errorTexts
	runRanks(t, 2, symmem.Options{CallSites: true}, func(r *rank) {
		p := r.pool()
		// The first request is the same on both ranks, and has another call site.
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

// TestDivergenceOmitsCallSitesByDefault makes the ranks diverge without the option CallSites. The
// error must show no call sites.
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

// TestSetCheckWhileGroupFails changes the check level while rank 0 makes a group fail. SetCheck
// must succeed.
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
// ranks must get a TimeoutError without missing ranks: rank 1 had no time to arrive.
func TestCheckAfterDeadlineBlamesNoRank(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		if r.Rank() == 0 {
			past := time.Unix(0, 0)
			ctx, cancel := context.WithDeadline(r.ctx, past)
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
