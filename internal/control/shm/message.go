package shm

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/message"
	"symmem/internal/ranked"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// Counts counts this rank's calls of Send and Recv.
//
// If GroupConfig.Strict is set, collectives also detect Sends without a matching Recv. A message's
// weight is a hash of its receiver and tag. A Send adds the weight to the sender's balance, and a
// Recv subtracts it from the receiver's balance. If all messages match, the balances of all ranks
// add up to 0 (modulo 2^64).
type Counts struct {
	group   *driver.GroupConfig
	balance atomic.Uint64 // 0 in groups that are not strict

	// Mu guards the fields below, and fields of a communicator that change together with them.
	Mu    ranked.Mutex[countsMu]
	sends message.Tally // by receiver and tag
	recvs message.Tally // by source and tag
}

var _ driver.MessageCounts = (*Group)(nil) // Group embeds Counts

// Balance returns the balance of this rank.
func (c *Counts) Balance() uint64 { return c.balance.Load() }

// CountMessage counts a new call of Send or Recv, and returns its sequence number among the calls
// with the same operation, peer and tag. priorCollectives is the number of collectives that this
// rank called before, and completed is the number of collectives that have completed. The caller
// must hold Mu.
func (c *Counts) CountMessage(
	call *driver.Call, priorCollectives, completed uint64,
) (number uint64) {
	if c.group.Strict {
		c.balance.Add(c.balanceChange(call))
	}

	key := message.Key{Peer: call.Root, Tag: call.Tag}
	if call.Operation == driver.Recv {
		return c.recvs.Count(key, priorCollectives, completed)
	}

	return c.sends.Count(key, priorCollectives, completed)
}

func (c *Counts) balanceChange(call *driver.Call) uint64 {
	if call.Operation == driver.Recv {
		return -message.Weight(c.group.Rank, call.Tag) // modulo 2^64
	}

	return message.Weight(call.Root, call.Tag)
}

// UnbalancedError returns the error of a collective after unmatched messages.
func (c *Counts) UnbalancedError(collective uint64) error {
	return &driver.MessageError{
		Fault:  driver.MessagesUnmatched,
		Group:  c.group.Name(),
		Number: collective,
		Ends:   c.MessagesBefore(collective),
	}
}

// MessagesBefore counts the calls of Send and Recv before a collective, by peer and tag.
func (c *Counts) MessagesBefore(collective uint64) (ends []driver.MessageEnds) {
	ownRank := c.group.Ranks[c.group.Rank]
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for _, send := range c.sends.CallsBefore(collective) {
		ends = append(ends, driver.MessageEnds{
			From: ownRank, To: c.group.Ranks[send.Peer], Tag: send.Tag, Sent: send.Calls,
		})
	}

	for _, recv := range c.recvs.CallsBefore(collective) {
		ends = append(ends, driver.MessageEnds{
			From: c.worldRankOf(recv.Peer), To: ownRank, Tag: recv.Tag, Received: recv.Calls,
		})
	}

	return ends
}

// worldRankOf returns the world rank of a Recv's source, which is a group rank or driver.AnySource.
func (c *Counts) worldRankOf(source int) int {
	if source == driver.AnySource {
		return source
	}

	return c.group.Ranks[source]
}

var _ control.Messages = (*plane)(nil)

// Count treats all collectives called so far as completed, because their messages have been
// compared or never will be.
func (p *plane) Count(call *driver.Call) control.Message {
	after := spin.LoadAcquire64(&p.submitted)
	p.Counts.Mu.Lock()
	defer p.Counts.Mu.Unlock()
	return control.Message{After: after, Number: p.CountMessage(call, after, after)}
}

func (p *plane) DiagnoseMessage(peer int, since time.Time, callText func() string) error {
	if p.BeginUse() != nil {
		return nil
	}

	defer p.EndUse()
	sources := []int{peer}
	if peer == driver.AnySource {
		if sources = p.PresentRanks(); len(sources) == 0 {
			sources = p.OtherRanks()
		}
	}

	w := &slowWait{
		isReady: func() bool { return false }, awaited: sources, callText: callText,
		timeout: p.cfg.Timeout.Get(),
		begin:   sys.Monotonic() - min(uint64(time.Since(since)), sys.Monotonic()),
	}
	return p.checkWait(context.Background(), w)
}

func (p *plane) HasCalledMore(peer int, collectives uint64) bool {
	if p.BeginUse() != nil {
		return false
	}

	defer p.EndUse()
	sources := []int{peer}
	if peer == driver.AnySource {
		sources = p.OtherRanks()
	}

	return !slices.ContainsFunc(sources, func(r int) bool {
		return spin.LoadAcquire64(&p.blocks[r].status.submitted) <= collectives
	})
}

// IsLost reports whether a process exited before its rank left the group.
func (p *plane) IsLost(peer int) bool {
	return slices.Contains(p.lostPeers(), peer)
}
