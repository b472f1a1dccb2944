package shm

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// MessageWait is a wait for a message.
type MessageWait struct {
	// Operation is Send or Recv, and Peer its other end, which may be AnySource: others can see
	// meanwhile that this rank waits there.
	Operation driver.Operation
	Peer      int
	// Ready reports whether the wait has ended.
	Ready func() bool
	// From lists the group ranks that are waited for.
	From []int
	// Doing names the wait for error messages.
	Doing func() string
	// Why, if it is set, says why what is waited for will not come, or nil.
	Why func() error
}

// AwaitMessage waits. The caller has entered the group, and has polled before.
func (g *Group) AwaitMessage(w MessageWait) error {
	b, word := &g.me.board, messageWait(w.Operation, w.Peer)
	spin.StoreRelease64(&b.messageSince, sys.Monotonic())
	spin.StoreRelease64(&b.message, word)
	defer atomic.CompareAndSwapUint64(&b.message, word, 0)
	return g.linger(context.Background(), &waiting{
		ready: w.Ready, from: w.From, doing: w.Doing, why: w.Why,
	})
}

// messageWait packs what a rank waits for into a word of its board: the operation, and the group
// rank of the peer plus 2, so that any source is 1.
func messageWait(o driver.Operation, peer int) uint64 { return uint64(o)<<32 | uint64(peer+2) }

// describeMessage says what a rank waits for in a message, or nothing.
func (b *board) describeMessage(ranks []int) string {
	word := spin.LoadAcquire64(&b.message)
	if word == 0 {
		return ""
	}
	waited := time.Duration(sys.Monotonic() - spin.LoadAcquire64(&b.messageSince)).
		Round(time.Millisecond)
	o, peer := driver.Operation(word>>32), int(word&0xffffffff)-2
	if peer < 0 || peer >= len(ranks) {
		return fmt.Sprintf("in %v from any rank for %v", o, waited)
	}
	if o == driver.Send {
		return fmt.Sprintf("in %v to rank %d of the world for %v", o, ranks[peer], waited)
	}
	return fmt.Sprintf("in %v from rank %d of the world for %v", o, ranks[peer], waited)
}

// PollSoon polls a word of the region for as long as a caller's own thread is kept by a message.
func (g *Group) PollSoon(word *uint64, want uint64) bool {
	if spin.UntilAtLeast64(word, want, 0, g.budget.polls) {
		return true
	}
	for range messageYields {
		g.machine.yield()
		if spin.LoadAcquire64(word) >= want {
			return true
		}
	}
	return false
}

// messageYields is how many turns a caller's own thread gives to others in a message: a few, since
// programs call Recv before the Send that the peer waits for.
const messageYields = 4
