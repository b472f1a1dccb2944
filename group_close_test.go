package symmem_test

import (
	"errors"
	"testing"
	"time"

	"symmem"
)

// If a peer has sent a message and aborted, Close reports the abort and the unreceived message.
func TestCloseNamesFailedPeer(t *testing.T) {
	aborted := make(chan struct{})
	runWithFault(t, 2, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		m := r.alloc(r.pool(), 4096).Memory()
		if r.Rank() == 1 {
			const receiver = 0
			const count = 16 // arbitrary
			r.ok(g.Send(r.ctx, m, count, symmem.Int8, receiver, nil))
			r.synchronize()
			g.Abort()
			close(aborted)
			return
		}

		<-aborted
		err := g.Close()
		r.wantErr(err, symmem.ErrAborted)
		if !errors.As(err, new(*symmem.MessageError)) {
			r.failf("got %v, want a MessageError in addition to ErrAborted", err)
		}
	})
}

// After an abort and Close, the pools of both ranks again allocate buffers at equal offsets.
func TestCloseRealignsAfterPeerFault(t *testing.T) {
	aborted := make(chan struct{})
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		p := r.pool()
		r.checkSum(r.World(), r.alloc(p, 4096))
		if r.Rank() == 1 {
			g.Abort()
			close(aborted)
		} else {
			<-aborted
		}

		r.ok(g.Close())
		r.checkSum(r.World(), r.alloc(p, 4096))
	})
}

// Close times out behind queued work and aborts the collective. TestMain checks that no memory of
// the group is still mapped.
func TestGroupCloseAbortsUnfinishedWork(t *testing.T) {
	runRanks(t, 1, symmem.Options{Timeout: time.Second}, func(r *rank) {
		r.requireDroppedWork()
		g := r.split(r.World(), 0)
		m := r.memory1000(g)
		s := r.stream()
		releaseStream := r.hold(s)
		r.ok(r.sum1000(g, m, s))
		r.wantTimeout(g.Close())
		releaseStream()
		r.wantErr(s.Synchronize(r.ctx), symmem.ErrClosed)
	})
}

func TestGroupCloseWaitsForCollective(t *testing.T) {
	runRanks(t, 2, abortable, func(r *rank) {
		p := r.pool()
		// A large buffer and several attempts make it likely that Close meets a running collective.
		b := r.alloc(p, 16*mib)
		const attempts = 4
		for range attempts {
			g := r.split(r.World(), 0)
			r.checkSum(g, b)
			started := make(chan struct{})
			result := make(chan error, 1)
			go func() {
				close(started)
				result <- sumUntilError(r, g, b)
			}()
			<-started
			r.ok(g.Close())
			err := <-result
			closedHere := errors.Is(err, symmem.ErrClosed)
			peerClosedFirst := errors.As(err, new(*symmem.DeadlockError))
			if !closedHere && !peerClosedFirst {
				r.failf("got %v, want ErrClosed or a DeadlockError", err)
			}
		}
	})
}

// sumUntilError repeats an all-reduce until it fails.
func sumUntilError(r *rank, g *symmem.Group, b symmem.Buffer) error {
	for {
		if err := r.sum(g, b); err != nil {
			return err
		}
	}
}

// A DeadlockError names the rank that has closed the group, but not a rank without a call.
func TestDeadlockNamesOnlyClosedRank(t *testing.T) {
	const (
		callingRank = 0
		idleRank    = 1
		closingRank = 2
	)
	const survivors = 2
	var texts errorTexts
	runRanks(t, 3, abortable, func(r *rank) {
		g := r.split(r.World(), 0)
		b := r.alloc(r.pool(), mib)
		r.checkSum(g, b)
		switch r.Rank() {
		case callingRank:
			_ = sumUntilError(r, g, b) // Cause returns the same error
		case idleRank:
			<-g.Ended()
		case closingRank:
			r.ok(g.Close())
			return
		}

		err := g.Cause(r.ctx)
		var deadlock *symmem.DeadlockError
		if !errors.As(err, &deadlock) {
			r.failf("got %v, want a DeadlockError", err)
		}

		namesClosingRank := deadlock.Activity[closingRank] != ""
		if !namesClosingRank || len(deadlock.Activity) > 1 {
			r.failf("got %v, want an error that names only rank %d", err, closingRank)
		}

		texts.add(r, err)
	})
	texts.requireSame(t, survivors)
}

func TestRanksAgreeOnClosedRanks(t *testing.T) {
	const closingRank = 1
	const survivors = 2
	var causes errorTexts
	runRanks(t, 3, abortable, func(r *rank) {
		g := r.split(r.World(), 0)
		b := r.alloc(r.pool(), mib)
		r.checkSum(g, b)
		if r.Rank() == closingRank {
			r.ok(g.Close())
			return
		}

		err := sumUntilError(r, g, b)
		causes.add(r, g.Cause(r.ctx))
		var deadlock *symmem.DeadlockError
		namesClosingRank := errors.As(err, &deadlock) && deadlock.Activity[closingRank] != ""
		if !namesClosingRank {
			r.failf("got %v, want a DeadlockError that names rank %d", err, closingRank)
		}
	})
	causes.requireSame(t, survivors)
}
