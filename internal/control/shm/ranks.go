package shm

import (
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/spin"
)

// ranks holds this rank's view of a group. Each rank has a block, its part of the shared memory, in
// which it publishes its state. All rank numbers are group ranks.
type ranks struct {
	ownBlock    *block
	otherBlocks []*block // blocks without ownBlock, in the same order
	blocks      []*block // by group rank
	peers       []*peer  // connections by group rank; nil for this rank, and until connected
	cfg         *driver.GroupConfig
}

func (r *ranks) Size() int { return len(r.blocks) }

func (r *ranks) OtherRanks() []int {
	var others []int
	for rank := range r.blocks {
		if rank != r.cfg.Rank {
			others = append(others, rank)
		}
	}

	return others
}

func (r *ranks) HasLeft(rank int) bool {
	return spin.LoadAcquire64(&r.blocks[rank].status.closed) != 0
}

// PresentRanks lists the other ranks that have not left the group.
func (r *ranks) PresentRanks() []int { return slices.DeleteFunc(r.OtherRanks(), r.HasLeft) }

// selectLost returns the candidates whose processes have exited.
func (r *ranks) selectLost(candidates []int) []int {
	var lost []int
	for _, rank := range candidates {
		p := r.peers[rank]
		if p != nil && p.isLost.Load() {
			lost = append(lost, rank)
		}
	}

	return lost
}

// lostPeers lists the ranks whose processes exited before they left the group.
func (r *ranks) lostPeers() []int {
	// HasLeft is called last, because a rank may leave and exit between the two checks.
	exited := r.selectLost(r.OtherRanks())
	return slices.DeleteFunc(exited, r.HasLeft)
}

// peerFailed reports whether another rank has failed.
func (r *ranks) peerFailed() bool {
	for _, b := range r.otherBlocks {
		if atomic.LoadUint32(&b.wakeup.failed) != 0 {
			return true
		}
	}

	return false
}

// TicketsOf returns the number of collectives that a rank has launched.
func (r *ranks) TicketsOf(rank int) uint64 {
	return spin.LoadAcquire64(&r.blocks[rank].status.submitted)
}

// IsAsleep reports whether a rank has sleeping threads.
func (r *ranks) IsAsleep(rank int) bool {
	return atomic.LoadInt32(&r.blocks[rank].wakeup.sleeping) != 0
}

// Wake wakes a rank's sleeping threads.
func (r *ranks) Wake(rank int) {
	if r.IsAsleep(rank) {
		r.blocks[rank].wakeup.wake()
	}
}

// wakeSleepers wakes the other ranks' sleeping threads after a post. Without a memory fence, it may
// miss a thread that is about to sleep. That thread sees the post after the sleep's short timeout.
func (r *ranks) wakeSleepers() {
	for _, b := range r.otherBlocks {
		if atomic.LoadInt32(&b.wakeup.sleeping) != 0 {
			b.wakeup.wake()
		}
	}
}

// wakeAll makes all ranks, sleeping or not, notice that this rank has failed or left. They check
// for this only after a change of their wakeup.word, which wake increments.
func (r *ranks) wakeAll() {
	for _, b := range r.blocks {
		b.wakeup.wake()
	}
}
