package symmem_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"symmem"
	"symmem/driver"
)

// TestCloseNamesFailedPeer closes a group after a peer has sent a message and aborted the group.
// The error must report the abort and the unreceived message, because either of them may explain
// the other.
func TestCloseNamesFailedPeer(t *testing.T) {
	aborted := make(chan struct{})
	runWithFault(t, 2, symmem.Options{}, func(r *rank) {
		g := r.split(r.World(), 0)
		m := r.alloc(r.pool(), 4096).Memory()
		if r.Rank() == 1 {
			r.ok(g.Send(r.ctx, m, 16, symmem.Int8, 0, nil))
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

// TestCloseRealignsAfterPeerFault closes a group that a peer has aborted. The ranks must realign
// their pools afterwards.
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

// TestGroupCloseAbortsUnfinishedWork closes a group whose collective waits for earlier work on its
// stream. Close must time out and abort the collective. TestMain checks that the group's mappings
// are released.
func TestGroupCloseAbortsUnfinishedWork(t *testing.T) {
	runRanks(t, 1, symmem.Options{Timeout: time.Second}, func(r *rank) {
		r.requireDroppedWork()
		g := r.split(r.World(), 0)
		m, s := r.memory1000(g), r.stream()
		release := r.hold(s)
		r.ok(r.sum1000(g, m, s))
		r.wantTimeout(g.Close())
		release()
		r.wantErr(s.Synchronize(r.ctx), symmem.ErrClosed)
	})
}

func TestGroupCloseWaitsForCollective(t *testing.T) {
	runRanks(t, 2, abortable, func(r *rank) {
		p := r.pool()
		b := r.alloc(p, 16*mib)
		for range 4 {
			g, err := r.World().Split(r.ctx, 0, 0)
			r.ok(err)
			r.checkSum(g, b)
			started, result := make(chan struct{}), make(chan error, 1)
			go func() {
				close(started)
				var err error
				for err == nil {
					err = r.sum(g, b)
				}
				result <- err
			}()
			<-started
			r.ok(g.Close())
			// If the other rank has closed first, the error says so.
			var deadlock *driver.DeadlockError
			if err := <-result; !errors.Is(err, symmem.ErrClosed) && !errors.As(err, &deadlock) {
				r.failf("got %v, want ErrClosed or a DeadlockError", err)
			}
		}
	})
}

// TestDeadlockNamesOnlyClosedRank closes a group on rank 2 while rank 0 makes collectives. The
// error must not name rank 1, which makes no call either.
func TestDeadlockNamesOnlyClosedRank(t *testing.T) {
	var texts errorTexts
	runRanks(t, 3, abortable, func(r *rank) {
		g, err := r.World().Split(r.ctx, 0, 0)
		r.ok(err)
		b := r.alloc(r.pool(), mib)
		r.checkSum(g, b)
		switch r.Rank() {
		case 0:
			for err == nil {
				err = r.sum(g, b)
			}
		case 1:
			<-g.Ended() // this rank makes no call
		case 2:
			r.ok(g.Close())
			return
		}
		err = g.Cause(r.ctx)
		var deadlock *driver.DeadlockError
		if !errors.As(err, &deadlock) || deadlock.Activity[2] == "" || len(deadlock.Activity) > 1 {
			t.Errorf("rank %d: got %v, want a DeadlockError that names only rank 2", r.Rank(), err)
		}
		texts.add(r, err)
	})
	texts.requireSame(t, 2)
}

func TestRanksAgreeOnClosedRanks(t *testing.T) {
	var mu sync.Mutex
	faults := map[string]bool{} // texts of the causes; guarded by mu
	runRanks(t, 3, abortable, func(r *rank) {
		g, err := r.World().Split(r.ctx, 0, 0)
		r.ok(err)
		p := r.pool()
		b := r.alloc(p, mib)
		r.checkSum(g, b)
		if r.Rank() == 1 {
			r.ok(g.Close())
			return
		}
		for err == nil {
			err = r.sum(g, b)
		}
		mu.Lock()
		defer mu.Unlock()
		faults[g.Cause(r.ctx).Error()] = true
		var deadlock *driver.DeadlockError
		if !errors.As(err, &deadlock) || deadlock.Activity[1] == "" {
			t.Errorf("rank %d: got %v, want a DeadlockError that names rank 1", r.Rank(), err)
		}
	})
	if len(faults) != 1 {
		t.Errorf("got the errors %v, want the same one on both ranks", faults)
	}
}
