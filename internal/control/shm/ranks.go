package shm

import (
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/spin"
)

type ranks struct {
	ownBlock    *block
	otherBlocks []*block // in group order
	blocks      []*block // by group rank
	peers       []*peer  // by group rank; nil for this rank
	cfg         *driver.GroupConfig
}

func (r *ranks) Size() int { return len(r.blocks) }

// lostPeers lists group ranks whose processes exited before they left the group.
func (r *ranks) lostPeers() []int {
	return slices.DeleteFunc(r.selectLost(r.OtherRanks()), r.HasLeft)
}

// wakeAll increments every futex word, even if no thread sleeps: a plane assumes that no peer has
// failed while its word is unchanged.
func (r *ranks) wakeAll() {
	for _, b := range r.blocks {
		b.wakeup.wake()
	}
}

// peerFailed reports whether a peer has failed. It may have completed earlier steps, but waits for
// no later step.
func (r *ranks) peerFailed() bool {
	for _, b := range r.otherBlocks {
		if atomic.LoadUint32(&b.wakeup.failed) != 0 {
			return true
		}
	}
	return false
}

// wakeSleepers must be called after every post of a step. The package comment explains why that
// needs no memory fence.
func (r *ranks) wakeSleepers() {
	for _, b := range r.otherBlocks {
		if atomic.LoadInt32(&b.wakeup.sleeping) != 0 {
			b.wakeup.wake()
		}
	}
}

func (r *ranks) Wake(rank int) {
	if r.IsAsleep(rank) {
		r.blocks[rank].wakeup.wake()
	}
}

func (r *ranks) TicketsOf(rank int) uint64 {
	return spin.LoadAcquire64(&r.blocks[rank].status.submitted)
}

func (r *ranks) HasLeft(rank int) bool {
	return spin.LoadAcquire64(&r.blocks[rank].status.closed) != 0
}

func (r *ranks) OtherRanks() []int {
	var ranks []int
	for rank := range r.blocks {
		if rank != r.cfg.Rank {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// PresentRanks lists the other ranks that have not left the group.
func (r *ranks) PresentRanks() []int { return slices.DeleteFunc(r.OtherRanks(), r.HasLeft) }

func (r *ranks) IsAsleep(rank int) bool {
	return atomic.LoadInt32(&r.blocks[rank].wakeup.sleeping) != 0
}

func (r *ranks) selectLost(ranks []int) []int {
	var lost []int
	for _, rank := range ranks {
		if p := r.peers[rank]; p != nil && p.isLost.Load() {
			lost = append(lost, rank)
		}
	}
	return lost
}
