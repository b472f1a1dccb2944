package shm

import (
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/message"
	"symmem/internal/ranked"
)

// Counts counts this rank's calls of Send and Recv.
//
// Strict groups also check that every Send has its Recv. A Send adds a weight, a hash of receiver
// and tag, to the sender's balance. A Recv subtracts the weight from the receiver's balance. If all
// messages match, the balances of all ranks add up to 0.
type Counts struct {
	group   *driver.GroupConfig
	balance atomic.Uint64 // 0 in groups that are not strict

	// Mu guards the fields below, and fields of a communicator that change together with them.
	Mu      ranked.Mutex[countsMu]
	sent    message.Tally // calls of Send, by receiver and tag
	awaited message.Tally // calls of Recv, by source and tag
}

// Balance returns the balance of this rank.
func (c *Counts) Balance() uint64 { return c.balance.Load() }

// CountMessage counts a new call of Send or Recv, and returns its sequence number among the calls
// with the same operation, peer and tag. The rank has called after collectives before, and
// completed some of these. The caller must hold Mu.
func (c *Counts) CountMessage(call *driver.Call, after, completed uint64) (number uint64) {
	isRecv := call.Operation == driver.Recv
	tally, receiver := &c.sent, call.Root
	if isRecv {
		tally, receiver = &c.awaited, c.group.Rank
	}

	if c.group.Strict {
		weight := message.Weight(receiver, call.Tag)
		if isRecv {
			weight = -weight
		}

		c.balance.Add(weight)
	}

	return tally.Count(message.Key{Peer: call.Root, Tag: call.Tag}, after, completed)
}

// UnbalancedError is the error of a collective after unmatched messages.
func (c *Counts) UnbalancedError(collective uint64) error {
	return &driver.MessageError{
		Fault:  driver.MessagesUnmatched,
		Group:  c.group.Name(),
		Number: collective,
		Ends:   c.MessagesBefore(collective),
	}
}

var _ driver.MessageCounts = (*Group)(nil)

// MessagesBefore returns the counts of this rank's messages before a collective.
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
			From: c.worldRankOf(n.Peer), To: ownRank, Tag: n.Tag, Received: n.Calls,
		})
	}

	return ends
}

// worldRankOf translates the source of a Recv, a group rank or driver.AnySource.
func (c *Counts) worldRankOf(source int) int {
	if source == driver.AnySource {
		return source
	}

	return c.group.Ranks[source]
}
