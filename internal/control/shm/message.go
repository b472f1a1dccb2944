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
// In strict groups, each rank has a balance, with which collectives detect unmatched messages. A
// message's weight is a hash of its receiver and tag. A Send adds the weight to the sender's
// balance, and a Recv subtracts it from the receiver's balance. If all messages match, the balances
// of all ranks add up to 0 (modulo 2^64).
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
// rank called before, and completed is how many of them have completed. The caller must hold Mu.
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
		receiver := c.group.Rank
		return -message.Weight(receiver, call.Tag)
	}

	receiver := call.Root
	return message.Weight(receiver, call.Tag)
}

// UnbalancedError returns the error of a collective that follows unmatched messages.
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

func (p *plane) Count(call *driver.Call) control.Message {
	after := spin.LoadAcquire64(&p.submitted)
	completed := after // earlier messages have been compared or never will be
	p.Counts.Mu.Lock()
	defer p.Counts.Mu.Unlock()
	return control.Message{After: after, Number: p.CountMessage(call, after, completed)}
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

	now := sys.Monotonic()
	waited := min(uint64(time.Since(since)), now) // keeps begin from wrapping around
	w := &slowWait{
		isReady: func() bool { return false }, awaited: sources, callText: callText,
		timeout: p.cfg.Timeout.Get(),
		begin:   now - waited,
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

	for _, r := range sources {
		if p.LastTicketOf(r) <= collectives {
			return false
		}
	}

	return true
}

// IsLost implements control.Messages.
func (p *plane) IsLost(peer int) bool {
	return slices.Contains(p.lostPeers(), peer)
}
