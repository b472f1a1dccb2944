package shm

import (
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/spin"
)

// ranks holds the blocks of a group's ranks and the connections to them. A block is a rank's part
// of the group's shared memory. Numbers of ranks are group ranks.
type ranks struct {
	ownBlock    *block
	otherBlocks []*block // in group order, without this rank
	blocks      []*block // by group rank
	peers       []*peer  // by group rank; nil for this rank, and before the connection
	cfg         *driver.GroupConfig
}

// Size returns the number of ranks in the group.
func (r *ranks) Size() int { return len(r.blocks) }

// lostPeers lists group ranks whose processes exited before they left the group.
func (r *ranks) lostPeers() []int {
	return slices.DeleteFunc(r.selectLost(r.OtherRanks()), r.HasLeft)
}

// wakeAll wakes the threads of all ranks after this rank has failed or left. It increments every
// futex word, even if no thread sleeps: while its word is unchanged, a rank assumes that no peer
// has failed or left.
func (r *ranks) wakeAll() {
	for _, b := range r.blocks {
		b.wakeup.wake()
	}
}

// peerFailed reports whether a peer has failed. Such a peer may have completed earlier steps, but
// waits for no later step.
func (r *ranks) peerFailed() bool {
	for _, b := range r.otherBlocks {
		if atomic.LoadUint32(&b.wakeup.failed) != 0 {
			return true
		}
	}

	return false
}

// wakeSleepers wakes the other ranks' sleeping threads. Call it after every post of a step. The
// package comment explains why it needs no memory fence after the post.
func (r *ranks) wakeSleepers() {
	for _, b := range r.otherBlocks {
		if atomic.LoadInt32(&b.wakeup.sleeping) != 0 {
			b.wakeup.wake()
		}
	}
}

// Wake wakes a rank's sleeping threads.
func (r *ranks) Wake(rank int) {
	if r.IsAsleep(rank) {
		r.blocks[rank].wakeup.wake()
	}
}

// TicketsOf returns the number of collectives that a rank has launched.
func (r *ranks) TicketsOf(rank int) uint64 {
	return spin.LoadAcquire64(&r.blocks[rank].status.submitted)
}

// HasLeft reports whether a rank has left the group.
func (r *ranks) HasLeft(rank int) bool {
	return spin.LoadAcquire64(&r.blocks[rank].status.closed) != 0
}

// OtherRanks lists all ranks except this one.
func (r *ranks) OtherRanks() []int {
	var others []int
	for rank := range r.blocks {
		if rank != r.cfg.Rank {
			others = append(others, rank)
		}
	}

	return others
}

// PresentRanks lists the other ranks that have not left the group.
func (r *ranks) PresentRanks() []int { return slices.DeleteFunc(r.OtherRanks(), r.HasLeft) }

// IsAsleep reports whether threads of a rank are sleeping.
func (r *ranks) IsAsleep(rank int) bool {
	return atomic.LoadInt32(&r.blocks[rank].wakeup.sleeping) != 0
}

// selectLost returns those of the candidates whose processes have exited.
func (r *ranks) selectLost(candidates []int) []int {
	var lost []int
	for _, rank := range candidates {
		if p := r.peers[rank]; p != nil && p.isLost.Load() {
			lost = append(lost, rank)
		}
	}

	return lost
}
