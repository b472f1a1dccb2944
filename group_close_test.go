package symmem_test

import (
	"errors"
	"testing"
	"time"

	"symmem"
	"symmem/driver"
)

// These tests close a group on one rank while its work is unfinished, or while other ranks, its
// peers, use the group or have made it fail. For example, rank 2 closes the group and rank 0 waits
// in a collective: rank 0 must get a DeadlockError that names rank 2.

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
// must realign their pools, so that later buffers have equal offsets on all ranks again and the
// world still works.
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
// stream. Close must time out and abort the collective. It must also release the group's mappings
// of memory, which TestMain checks.
func TestGroupCloseAbortsUnfinishedWork(t *testing.T) {
	runRanks(t, 1, symmem.Options{Timeout: time.Second}, func(r *rank) {
		r.requireDroppedWork() // skips the test on GPUs
		g := r.split(r.World(), 0)
		m := r.memory1000(g) // 1000 numbers
		s := r.stream()
		release := r.hold(s) // keeps the stream busy
		r.ok(r.sum1000(g, m, s))
		r.wantTimeout(g.Close())
		release()
		r.wantErr(s.Synchronize(r.ctx), symmem.ErrClosed)
	})
}

// TestGroupCloseWaitsForCollective closes a group while a goroutine repeats a collective in it.
// Close must succeed, and the collective must fail because this rank or its peer has closed the
// group.
func TestGroupCloseWaitsForCollective(t *testing.T) {
	runRanks(t, 2, abortable, func(r *rank) {
		p := r.pool()
		b := r.alloc(p, 16*mib) // large, so that Close is likely to meet a collective
		for range 4 {           // more chances for this
			g := r.split(r.World(), 0)
			r.checkSum(g, b)
			started := make(chan struct{})
			result := make(chan error, 1)
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
			isClosedByPeer := errors.As(err, new(*driver.DeadlockError)) // the peer closed it first
			if !isClosedHere && !isClosedByPeer {
				r.failf("got %v, want ErrClosed or a DeadlockError", err)
			}
		}
	})
}

// TestDeadlockNamesOnlyClosedRank closes a group on rank 2, while rank 0 makes collectives and rank
// 1 makes no call. The error must name rank 2 only.
func TestDeadlockNamesOnlyClosedRank(t *testing.T) {
	const (
		callingRank = 0
		idleRank    = 1
		closingRank = 2
	)
	var texts errorTexts
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
			<-g.Ended()
		case closingRank:
			r.ok(g.Close())
			return
		}

		err := g.Cause(r.ctx)
		var deadlock *driver.DeadlockError
		if !errors.As(err, &deadlock) {
			r.failf("got %v, want a DeadlockError", err)
		}

		namesClosingRank := deadlock.Activity[closingRank] != ""
		if !namesClosingRank || len(deadlock.Activity) > 1 {
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
	const closingRank = 1
	const survivors = 2
	var causes errorTexts
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
		namesClosingRank := errors.As(err, &deadlock) && deadlock.Activity[closingRank] != ""
		if !namesClosingRank {
			r.failf("got %v, want a DeadlockError that names rank %d", err, closingRank)
		}
	})
	causes.requireSame(t, survivors)
}
