package symmem_test

import (
	"errors"
	"testing"
	"time"

	"symmem"
	"symmem/driver"
)

// TestCloseNamesFailedPeer closes a group after a peer has sent a message and aborted the group.
// The error must report the abort and the unreceived message, because either of them may explain
// the other.
func TestCloseNamesFailedPeer(t *testing.T) {
	aborted := make(chan struct{}) // closed when rank 1 has aborted the group
	runWithFault(t, 2, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		m := r.alloc(r.pool(), 4096).Memory()
		if r.Rank() == 1 {
			const count, receiver = 16, 0
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

// TestCloseRealignsAfterPeerFault closes a group that a peer has aborted. Afterwards, the ranks
// must realign their pools (place later buffers at equal offsets again), so that the world still
// works.
func TestCloseRealignsAfterPeerFault(t *testing.T) {
	aborted := make(chan struct{}) // closed when rank 1 has aborted the group
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

// TestGroupCloseAbortsUnfinishedWork closes a group whose collective waits for earlier work on its
// stream. Close must time out and abort the collective. TestMain checks that the group's mappings
// are released.
func TestGroupCloseAbortsUnfinishedWork(t *testing.T) {
	runRanks(t, 1, symmem.Options{Timeout: time.Second}, func(r *rank) {
		r.requireDroppedWork() // skips the test on GPUs
		g := r.split(r.World(), 0)
		m, s := r.memory1000(g), r.stream() // 1000 numbers
		release := r.hold(s)                // keeps the stream busy
		r.ok(r.sum1000(g, m, s))
		r.wantTimeout(g.Close())
		release()
		r.wantErr(s.Synchronize(r.ctx), symmem.ErrClosed)
	})
}

// TestGroupCloseWaitsForCollective closes a group while a goroutine repeats a collective in it.
// Close must succeed and end the collective, with an error that says that a rank has closed.
func TestGroupCloseWaitsForCollective(t *testing.T) {
	runRanks(t, 2, abortable, func(r *rank) {
		p := r.pool()
		b := r.alloc(p, 16*mib) // large, so that Close is likely to meet a collective
		for range 4 {           // more chances for this
			g := r.split(r.World(), 0)
			r.checkSum(g, b)
			started, result := make(chan struct{}), make(chan error, 1)
			go func() { // ends after Close
				close(started)
				var err error
				for err == nil {
					err = r.sum(g, b)
				}

				result <- err
			}()
			<-started
			r.ok(g.Close())
			err := <-result
			isClosedHere := errors.Is(err, symmem.ErrClosed)
			isClosedByPeer := errors.As(err, new(*driver.DeadlockError)) // the peer was faster
			if !isClosedHere && !isClosedByPeer {
				r.failf("got %v, want ErrClosed or a DeadlockError", err)
			}
		}
	})
}

// TestDeadlockNamesOnlyClosedRank closes a group on rank 2 while rank 0 makes collectives. The
// error must not name rank 1, which makes no call either.
func TestDeadlockNamesOnlyClosedRank(t *testing.T) {
	var texts errorTexts
	const callingRank, idleRank, closingRank = 0, 1, 2
	runRanks(t, 3, abortable, func(r *rank) {
		g := r.split(r.World(), 0)
		b := r.alloc(r.pool(), mib)
		r.checkSum(g, b)
		switch r.Rank() {
		case callingRank:
			var err error
			for err == nil { // until the group fails
				err = r.sum(g, b)
			}
		case idleRank:
			<-g.Ended() // this rank makes no call
		case closingRank:
			r.ok(g.Close())
			return
		}

		err := g.Cause(r.ctx)
		var deadlock *driver.DeadlockError
		if !errors.As(err, &deadlock) {
			r.failf("got %v, want a DeadlockError", err)
		}

		if deadlock.Activity[closingRank] == "" || len(deadlock.Activity) > 1 {
			r.failf("got %v, want an error that names only rank %d", err, closingRank)
		}

		texts.add(r, err)
	})
	const survivors = 2
	texts.requireSame(t, survivors)
}

// TestRanksAgreeOnClosedRanks closes a group on rank 1 while the others make collectives. The
// others must get the same error, which names rank 1.
func TestRanksAgreeOnClosedRanks(t *testing.T) {
	var causes errorTexts
	const closingRank, survivors = 1, 2
	runRanks(t, 3, abortable, func(r *rank) {
		g := r.split(r.World(), 0)
		p := r.pool()
		b := r.alloc(p, mib)
		r.checkSum(g, b)
		if r.Rank() == closingRank {
			r.ok(g.Close())
			return
		}

		var err error
		for err == nil {
			err = r.sum(g, b)
		}

		causes.add(r, g.Cause(r.ctx))
		var deadlock *driver.DeadlockError
		if !errors.As(err, &deadlock) || deadlock.Activity[closingRank] == "" {
			r.failf("got %v, want a DeadlockError that names rank %d", err, closingRank)
		}
	})
	causes.requireSame(t, survivors)
}
