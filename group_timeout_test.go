package symmem_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"symmem"
)

const groupLateRank = 1

const (
	longTimeout  = time.Hour              // enough to create a group on a busy machine
	shortTimeout = 300 * time.Millisecond // for groupCalls
)

// groupCalls wait for groupLateRank, which makes no call.
var groupCalls = map[string]func(r *rank, g *symmem.Group) error{
	"AllReduce": func(r *rank, g *symmem.Group) error {
		const count = 1 // arbitrary
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
		const count = 1 // arbitrary
		m := r.alloc(r.pool(), 4096).Memory()
		err := g.Recv(r.ctx, m, count, symmem.Float32, groupLateRank, nil)
		return joinSyncError(r, err)
	},
}

// joinSyncError waits until the stream is idle and joins callErr with an error of queued work.
func joinSyncError(r *rank, callErr error) error {
	syncErr := r.DefaultStream().Synchronize(r.ctx)
	return errors.Join(callErr, syncErr)
}

// groupCreators return a group with longTimeout.
var groupCreators = map[string]func(r *rank) (*symmem.Group, error){
	"JoinWith": joinWithLongTimeout,
	"SetTimeout": func(r *rank) (*symmem.Group, error) {
		g, err := r.Join(r.ctx, "group", []int{0, 1})
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

		return g.Split(r.ctx, 0, r.Rank()) // inherits the timeout of g
	},
}

func joinWithLongTimeout(r *rank) (*symmem.Group, error) {
	return r.JoinWith(r.ctx, "group", []int{0, 1}, symmem.GroupOptions{Timeout: longTimeout})
}

func TestGroupTimeoutNamesLateRank(t *testing.T) {
	for name, call := range groupCalls {
		for creation, createGroup := range groupCreators {
			t.Run(name+", "+creation, func(t *testing.T) {
				errorReported := make(chan struct{})
				worldOptions := symmem.Options{Timeout: 2 * longTimeout} // must not apply to the group
				runRanks(t, 2, worldOptions, func(r *rank) {
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

// GroupOptions.Timeout also limits JoinWith itself.
func TestJoinTimeoutNamesLateRank(t *testing.T) {
	const lateRank = 2
	errorReported := make(chan struct{})
	runRanks(t, 3, symmem.Options{Timeout: time.Hour}, func(r *rank) {
		if r.Rank() == lateRank {
			<-errorReported
			return
		}

		const groupTimeout = 3 * time.Second // usually enough for ranks 0 and 1 to meet
		options := symmem.GroupOptions{Timeout: groupTimeout}
		_, err := r.JoinWith(r.ctx, "group", []int{0, 1, 2}, options)
		if r.Rank() == 0 {
			close(errorReported)
		}

		// On a busy machine, the error may name another rank, too.
		var timeoutErr *symmem.TimeoutError
		if !errors.As(err, &timeoutErr) || !slices.Contains(timeoutErr.Missing, lateRank) {
			r.failf("JoinWith = %v; want a TimeoutError that names rank %d", err, lateRank)
		}
	})
}

// SetTimeout also refuses zero, which selects the default in GroupOptions.
func TestInvalidGroupTimeouts(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		options := symmem.GroupOptions{Timeout: -time.Second}
		_, err := r.JoinWith(r.ctx, "negative", []int{0}, options)
		r.wantErr(err, symmem.ErrInvalid)
		for _, d := range []time.Duration{0, -time.Second} {
			r.wantErr(r.World().SetTimeout(d), symmem.ErrInvalid)
		}
	})
}

// Ranks find each other by the store, a server on rank 0. GroupOptions.Timeout also limits requests
// to the store.
func TestJoinTimeoutCoversStore(t *testing.T) {
	const worldTimeout, groupTimeout = time.Minute, 20 * time.Millisecond
	runRanks(t, 2, symmem.Options{Timeout: worldTimeout}, func(r *rank) {
		if r.Rank() == 0 {
			return // never joins
		}

		symmem.StallStore(r.Runtime)
		options := symmem.GroupOptions{Timeout: groupTimeout}
		_, err := r.JoinWith(r.ctx, "group", []int{0, 1}, options)
		var timeoutErr *symmem.TimeoutError
		if !errors.As(err, &timeoutErr) || !slices.Equal(timeoutErr.Missing, []int{0}) {
			r.failf("JoinWith = %v; want a TimeoutError that names rank 0", err)
		}

		if timeoutErr.Waited >= worldTimeout {
			r.failf("JoinWith waited %v; want less than %v", timeoutErr.Waited, worldTimeout)
		}
	})
}
