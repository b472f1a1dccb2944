package shm

import (
	"sync/atomic"

	"symmem/internal/spin"
)

// Ticket hands out the next place in the order of collectives, and shows it. Mu is held.
func (g *Group) Ticket() uint64 {
	g.submitted++
	spin.StoreRelease64(&g.me.board.submitted, g.submitted)
	return g.submitted
}

// Tickets is how many tickets were handed out. Mu is held.
func (g *Group) Tickets() uint64 { return g.submitted }

// TicketsOf is how many tickets a rank of the group has shown.
func (g *Group) TicketsOf(rank int) uint64 {
	return spin.LoadAcquire64(&g.blocks[rank].board.submitted)
}

// HasLeft reports whether a rank has left the group.
func (g *Group) HasLeft(rank int) bool {
	return spin.LoadAcquire64(&g.blocks[rank].board.closed) != 0
}

// Others lists the other ranks of the group.
func (g *Group) Others() []int {
	var ranks []int
	for r := range g.blocks {
		if r != g.cfg.Rank {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// Present lists the other ranks that have not left the group.
func (g *Group) Present() []int {
	var ranks []int
	for _, r := range g.Others() {
		if !g.HasLeft(r) {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// Asleep reports whether a thread of a rank sleeps in a wait.
func (g *Group) Asleep(rank int) bool {
	return atomic.LoadInt32(&g.blocks[rank].bell.sleeping) != 0
}
