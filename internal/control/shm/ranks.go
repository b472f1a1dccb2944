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

// lostPeers lists the group ranks whose processes exited before the ranks left the group.
func (r *ranks) lostPeers() []int { return slices.DeleteFunc(r.selectLost(r.Others()), r.HasLeft) }

// wakeAll wakes all ranks, including this one. It increments every futex word, even if no thread
// sleeps on it: while its word is unchanged, a plane assumes that no peer has failed.
func (r *ranks) wakeAll() {
	for _, b := range r.blocks {
		b.wakeup.wake()
	}
}

// peerFailed reports whether a peer has failed. That peer waits for no step that this rank posts
// afterwards. It may have completed earlier steps.
func (r *ranks) peerFailed() bool {
	for _, b := range r.otherBlocks {
		if atomic.LoadUint32(&b.wakeup.failed) != 0 {
			return true
		}
	}
	return false
}

// wakeSleepers wakes the peers that are sleeping. It must be called after every post of a step. The
// package comment explains why no memory fence is needed.
func (r *ranks) wakeSleepers() {
	for _, b := range r.otherBlocks {
		if atomic.LoadInt32(&b.wakeup.sleeping) != 0 {
			b.wakeup.wake()
		}
	}
}

func (r *ranks) Wake(rank int) {
	if r.Asleep(rank) {
		r.blocks[rank].wakeup.wake()
	}
}

func (r *ranks) TicketsOf(rank int) uint64 {
	return spin.LoadAcquire64(&r.blocks[rank].status.submitted)
}

func (r *ranks) HasLeft(rank int) bool {
	return spin.LoadAcquire64(&r.blocks[rank].status.closed) != 0
}

func (r *ranks) Others() []int {
	var ranks []int
	for rank := range r.blocks {
		if rank != r.cfg.Rank {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// OthersPresent lists the other ranks that have not left the group.
func (r *ranks) OthersPresent() []int { return slices.DeleteFunc(r.Others(), r.HasLeft) }

func (r *ranks) Asleep(rank int) bool {
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
