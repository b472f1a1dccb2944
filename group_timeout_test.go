package symmem_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"symmem"
)

// TestGroupTimeoutNamesLateRank makes calls on rank 0 in a group with a shorter timeout than the
// world's. Rank 1 makes no call until rank 0 has got the error, which must name rank 1.
func TestGroupTimeoutNamesLateRank(t *testing.T) {
	const lateRank = 1
	// On a busy machine, creating a group may take longer than shortTimeout, so the groups are
	// created with longTimeout.
	const longTimeout, shortTimeout = time.Hour, 300 * time.Millisecond
	calls := map[string]func(r *rank, g *symmem.Group) error{
		"AllReduce": func(r *rank, g *symmem.Group) error {
			const count = 1
			m := r.alloc(r.pool(), 4096).Memory()
			callErr := g.AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, nil)
			syncErr := r.DefaultStream().Synchronize(r.ctx) // reports an error of the submitted call
			return errors.Join(callErr, syncErr)
		},
		"Barrier": func(r *rank, g *symmem.Group) error {
			callErr := g.Barrier(r.ctx, nil)
			syncErr := r.DefaultStream().Synchronize(r.ctx)
			return errors.Join(callErr, syncErr)
		},
		"Agree": func(r *rank, g *symmem.Group) error { return g.Agree(r.ctx, "step", 1) },
		"Check": func(r *rank, g *symmem.Group) error { return g.Check(r.ctx) },
		"Recv": func(r *rank, g *symmem.Group) error {
			const count = 1
			m := r.alloc(r.pool(), 4096).Memory()
			callErr := g.Recv(r.ctx, m, count, symmem.Float32, lateRank, nil)
			syncErr := r.DefaultStream().Synchronize(r.ctx)
			return errors.Join(callErr, syncErr)
		},
	}
	// Each of these functions creates a group with longTimeout in a different way.
	creators := map[string]func(r *rank) (*symmem.Group, error){
		"JoinWith": func(r *rank) (*symmem.Group, error) {
			return r.JoinWith(r.ctx, "long", []int{0, 1}, symmem.GroupOptions{Timeout: longTimeout})
		},
		"SetTimeout": func(r *rank) (*symmem.Group, error) {
			g, err := r.Join(r.ctx, "long", []int{0, 1})
			if err == nil {
				err = g.SetTimeout(longTimeout)
			}

			return g, err
		},
		"Split": func(r *rank) (*symmem.Group, error) {
			g, err := r.JoinWith(r.ctx, "long", []int{0, 1}, symmem.GroupOptions{Timeout: longTimeout})
			if err != nil {
				return nil, err
			}

			return g.Split(r.ctx, 0, r.Rank()) // inherits the timeout
		},
	}
	for name, call := range calls {
		for creation, createGroup := range creators {
			t.Run(name+", "+creation, func(t *testing.T) {
				errorReported := make(chan struct{}) // closed when rank 0 has got the error
				runRanks(t, 2, symmem.Options{Timeout: 2 * longTimeout}, func(r *rank) {
					g, err := createGroup(r)
					r.ok(err)
					if g.Timeout() != longTimeout {
						r.failf("Timeout() = %v; want %v", g.Timeout(), longTimeout)
					}

					r.ok(g.SetTimeout(shortTimeout))
					if r.Rank() == lateRank {
						<-errorReported
						return
					}

					defer close(errorReported)
					err = call(r, g)
					r.wantTimeout(err, lateRank)
				})
			})
		}
	}
}

// TestJoinTimeoutNamesLateRank joins a group on ranks 0 and 1 only. The timeout of the new group
// must end the wait, although the world's is much longer.
func TestJoinTimeoutNamesLateRank(t *testing.T) {
	const lateRank = 2
	errorReported := make(chan struct{}) // closed when rank 0 has got the error
	runRanks(t, 3, symmem.Options{Timeout: time.Hour}, func(r *rank) {
		if r.Rank() == lateRank {
			<-errorReported
			return
		}

		// The timeout is long enough for ranks 0 and 1 to make the call on a busy machine.
		options := symmem.GroupOptions{Timeout: 3 * time.Second}
		_, err := r.JoinWith(r.ctx, "short", []int{0, 1, 2}, options)
		if r.Rank() == 0 {
			close(errorReported)
		}

		// On a busy machine, the error may also name another rank.
		var timeoutErr *symmem.TimeoutError
		if !errors.As(err, &timeoutErr) || !slices.Contains(timeoutErr.Missing, lateRank) {
			r.failf("JoinWith = %v; want a TimeoutError that names rank %d", err, lateRank)
		}
	})
}

// TestInvalidGroupTimeouts passes negative timeouts, and 0 to SetTimeout. In GroupOptions, 0
// selects the default.
func TestInvalidGroupTimeouts(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		options := symmem.GroupOptions{Timeout: -1}
		_, err := r.JoinWith(r.ctx, "negative", []int{0}, options)
		r.wantErr(err, symmem.ErrInvalid)
		for _, d := range []time.Duration{0, -time.Second} {
			r.wantErr(r.World().SetTimeout(d), symmem.ErrInvalid)
		}
	})
}

// TestJoinTimeoutCoversStore joins a group on rank 1 while the store, which rank 0 serves and
// through which ranks find each other, does not answer. The group's timeout must also limit this
// wait.
func TestJoinTimeoutCoversStore(t *testing.T) {
	const worldTimeout, shortTimeout = time.Minute, 20 * time.Millisecond
	runRanks(t, 2, symmem.Options{Timeout: worldTimeout}, func(r *rank) {
		if r.Rank() == 0 {
			return
		}

		symmem.StallStore(r.Runtime) // from now on, the store does not answer this rank
		_, err := r.JoinWith(r.ctx, "short", []int{0, 1}, symmem.GroupOptions{Timeout: shortTimeout})
		var timeoutErr *symmem.TimeoutError
		if !errors.As(err, &timeoutErr) || !slices.Equal(timeoutErr.Missing, []int{0}) {
			r.failf("JoinWith() = %v; want a TimeoutError that names rank 0", err)
		}

		if timeoutErr.Waited >= worldTimeout {
			r.failf("JoinWith waited %v; want about %v", timeoutErr.Waited, shortTimeout)
		}
	})
}
