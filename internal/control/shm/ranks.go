package shm

import (
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/spin"
)

// ranks gives access to the ranks of a group. All numbers of ranks are group ranks.
//
// Each rank has a block, its part of the group's shared memory. For example, rank 1 shows there
// that it has left the group, or how many of its threads sleep on a futex until they are woken.
// This rank also has a connection to each other rank, its peer, which notices when the rank's
// process exits.
type ranks struct {
	ownBlock    *block
	otherBlocks []*block // in group order, without this rank
	blocks      []*block // by group rank
	peers       []*peer  // by group rank; nil for this rank, and before the connection
	cfg         *driver.GroupConfig
}

// Size returns the number of ranks in the group.
func (r *ranks) Size() int { return len(r.blocks) }

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

// HasLeft reports whether a rank has left the group.
func (r *ranks) HasLeft(rank int) bool {
	return spin.LoadAcquire64(&r.blocks[rank].status.closed) != 0
}

// PresentRanks lists the other ranks that have not left the group.
func (r *ranks) PresentRanks() []int { return slices.DeleteFunc(r.OtherRanks(), r.HasLeft) }

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

// lostPeers lists the ranks whose processes exited before they left the group.
func (r *ranks) lostPeers() []int {
	exited := r.selectLost(r.OtherRanks()) // before HasLeft, because a rank may leave and then exit
	return slices.DeleteFunc(exited, r.HasLeft)
}

// peerFailed reports whether another rank has failed. Such a rank may have completed earlier steps,
// but waits for no later step.
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

// IsAsleep reports whether threads of a rank are sleeping.
func (r *ranks) IsAsleep(rank int) bool {
	return atomic.LoadInt32(&r.blocks[rank].wakeup.sleeping) != 0
}

// Wake wakes a rank's sleeping threads.
func (r *ranks) Wake(rank int) {
	if r.IsAsleep(rank) {
		r.blocks[rank].wakeup.wake()
	}
}

// wakeSleepers wakes the other ranks' sleeping threads. Call it after every post of a step.
//
// It needs no memory fence after the post. Without a fence, it may miss a thread that begins to
// sleep at the same time. This is acceptable, because each sleep has a short timeout.
func (r *ranks) wakeSleepers() {
	for _, b := range r.otherBlocks {
		if atomic.LoadInt32(&b.wakeup.sleeping) != 0 {
			b.wakeup.wake()
		}
	}
}

// wakeAll wakes the threads of all ranks after this rank has failed or left.
//
// It calls wake even if no thread sleeps, because wake increments the rank's futex word. While the
// word is unchanged, a rank assumes that no other rank has failed or left.
func (r *ranks) wakeAll() {
	for _, b := range r.blocks {
		b.wakeup.wake()
	}
}
