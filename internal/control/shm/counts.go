package shm

import (
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/message"
	"symmem/internal/ranked"
)

// Counts counts this rank's calls of Send and Recv. In strict groups, collectives compare the
// counts of all ranks.
type Counts struct {
	group *driver.GroupConfig
	// balance is the sum of message.Weight over messages sent, minus that over Recvs called. It is
	// 0 unless the group is strict.
	balance atomic.Uint64

	// Mu also guards a communicator's fields that change together with the counts.
	Mu      ranked.Mutex[countsMu]
	sent    message.Tally // by receiver; guarded by Mu
	awaited message.Tally // by source; guarded by Mu
}

// Balance returns this rank's message balance. All ranks' balances add up to 0 if all messages
// match.
func (c *Counts) Balance() uint64 { return c.balance.Load() }

// CountMessage numbers a Send or Recv. after and done are the numbers of collectives called and
// completed before. The caller must hold Mu.
func (c *Counts) CountMessage(call *driver.Call, after, done uint64) (number uint64) {
	tally, weight := &c.sent, message.Weight(call.Root, call.Tag)
	if call.Operation == driver.Recv {
		tally, weight = &c.awaited, -message.Weight(c.group.Rank, call.Tag)
	}

	if c.group.Strict {
		c.balance.Add(weight)
	}

	return tally.Count(message.Key{Peer: call.Root, Tag: call.Tag}, after, done)
}

// UnbalancedError is for balances that do not add up to 0.
func (c *Counts) UnbalancedError(collective uint64) error {
	return &driver.MessageError{
		Fault: driver.MessagesUnmatched, Group: c.group.Name(), Number: collective,
		Ends: c.MessagesBefore(collective),
	}
}

var _ driver.MessageCounts = (*Group)(nil)

// MessagesBefore lists this rank's messages before a collective.
func (c *Counts) MessagesBefore(collective uint64) (ends []driver.MessageEnds) {
	ownRank := c.group.Ranks[c.group.Rank]
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for _, n := range c.sent.Before(collective) {
		ends = append(ends, driver.MessageEnds{
			From: ownRank, To: c.group.Ranks[n.Peer], Tag: n.Tag, Sent: n.Calls,
		})
	}

	for _, n := range c.awaited.Before(collective) {
		ends = append(ends, driver.MessageEnds{
			From: c.worldOf(n.Peer), To: ownRank, Tag: n.Tag, Received: n.Calls,
		})
	}

	return ends
}

func (c *Counts) worldOf(source int) int {
	if source == driver.AnySource {
		return source
	}

	return c.group.Ranks[source]
}
