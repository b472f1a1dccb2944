package symmem_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"symmem"
)

// The timeout of a group limits the waits of its ranks for each other: if rank 1 does not make a
// call within this time, the call fails on rank 0 with a TimeoutError that names rank 1. Unless a
// group has another timeout, it has that of the world.

// groupLateRank makes none of groupCalls. It waits until rank 0 has got an error.
const groupLateRank = 1

// groupCalls are the calls that TestGroupTimeoutNamesLateRank makes on rank 0.
var groupCalls = map[string]func(r *rank, g *symmem.Group) error{
	"AllReduce": func(r *rank, g *symmem.Group) error {
		const count = 1
		m := r.alloc(r.pool(), 4096).Memory()
		err := g.AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, nil)
		return joinSyncError(r, err)
	},
	"Barrier": func(r *rank, g *symmem.Group) error {
		return joinSyncError(r, g.Barrier(r.ctx, nil))
	},
	"Agree": func(r *rank, g *symmem.Group) error { return g.Agree(r.ctx, "step", 1) },
	"Check": func(r *rank, g *symmem.Group) error { return g.Check(r.ctx) },
	"Recv": func(r *rank, g *symmem.Group) error {
		const count = 1
		m := r.alloc(r.pool(), 4096).Memory()
		err := g.Recv(r.ctx, m, count, symmem.Float32, groupLateRank, nil)
		return joinSyncError(r, err)
	},
}

// joinSyncError waits for the submitted call and adds the error of the wait to that of the call.
func joinSyncError(r *rank, callErr error) error {
	syncErr := r.DefaultStream().Synchronize(r.ctx)
	return errors.Join(callErr, syncErr)
}

const (
	// longTimeout is the timeout with which groups are created: on a busy machine, this may take
	// longer than shortTimeout.
	longTimeout  = time.Hour
	shortTimeout = 300 * time.Millisecond // of the calls
)

// groupCreators create a group of ranks 0 and 1 with longTimeout, each in a different way.
var groupCreators = map[string]func(r *rank) (*symmem.Group, error){
	"JoinWith": joinWithLongTimeout,
	"SetTimeout": func(r *rank) (*symmem.Group, error) {
		g, err := r.Join(r.ctx, "long", []int{0, 1})
		if err == nil {
			err = g.SetTimeout(longTimeout)
		}

		return g, err
	},
	"Split": func(r *rank) (*symmem.Group, error) {
		g, err := joinWithLongTimeout(r)
		if err != nil {
			return nil, err
		}

		return g.Split(r.ctx, 0, r.Rank()) // the new group inherits the timeout of g
	},
}

func joinWithLongTimeout(r *rank) (*symmem.Group, error) {
	return r.JoinWith(r.ctx, "long", []int{0, 1}, symmem.GroupOptions{Timeout: longTimeout})
}

// TestGroupTimeoutNamesLateRank makes calls on rank 0 in a group whose timeout is much shorter than
// the world's. Each call must fail with an error that names rank 1.
func TestGroupTimeoutNamesLateRank(t *testing.T) {
	for name, call := range groupCalls {
		for creation, createGroup := range groupCreators {
			t.Run(name+", "+creation, func(t *testing.T) {
				errorReported := make(chan struct{}) // closed when rank 0 has got the error
				runRanks(t, 2, symmem.Options{Timeout: 2 * longTimeout}, func(r *rank) {
					g, err := createGroup(r)
					r.ok(err)
					if g.Timeout() != longTimeout {
						r.failf("Timeout() = %v; want %v", g.Timeout(), longTimeout)
					}

					r.ok(g.SetTimeout(shortTimeout))
					if r.Rank() == groupLateRank {
						<-errorReported
						return
					}

					defer close(errorReported)
					r.wantTimeout(call(r, g), groupLateRank)
				})
			})
		}
	}
}

// TestJoinTimeoutNamesLateRank joins a group of three ranks on ranks 0 and 1, while rank 2 makes no
// call. The timeout of the new group must end the wait, although the world's is much longer.
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

// TestInvalidGroupTimeouts passes negative timeouts to JoinWith and SetTimeout, and 0 to
// SetTimeout. All must be refused. (In GroupOptions, 0 is valid: it selects the default.)
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

// TestJoinTimeoutCoversStore joins a group on rank 1 while the store does not answer. Ranks find
// each other through the store, which rank 0 serves. The group's timeout must also limit this wait.
func TestJoinTimeoutCoversStore(t *testing.T) {
	const worldTimeout = time.Minute
	const groupTimeout = 20 * time.Millisecond
	runRanks(t, 2, symmem.Options{Timeout: worldTimeout}, func(r *rank) {
		if r.Rank() == 0 {
			return
		}

		symmem.StallStore(r.Runtime) // from now on, the store does not answer this rank
		options := symmem.GroupOptions{Timeout: groupTimeout}
		_, err := r.JoinWith(r.ctx, "short", []int{0, 1}, options)
		var timeoutErr *symmem.TimeoutError
		if !errors.As(err, &timeoutErr) || !slices.Equal(timeoutErr.Missing, []int{0}) {
			r.failf("JoinWith() = %v; want a TimeoutError that names rank 0", err)
		}

		if timeoutErr.Waited >= worldTimeout {
			r.failf("JoinWith waited %v; want about %v", timeoutErr.Waited, groupTimeout)
		}
	})
}
