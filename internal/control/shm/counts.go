package shm

import (
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/message"
	"symmem/internal/ranked"
)

// Counts counts this rank's calls of Send and Recv.
//
// In strict groups, Counts also detects Sends without a matching Recv. A message has a weight, a
// hash of receiver and tag. A Send adds the weight to the balance of its rank, and a Recv subtracts
// it. If all messages match, the balances of all ranks add up to 0.
type Counts struct {
	group   *driver.GroupConfig
	balance atomic.Uint64 // 0 in groups that are not strict

	// Mu guards the fields below. A communicator may use it for fields that change together with them.
	Mu      ranked.Mutex[countsMu]
	sent    message.Tally // calls of Send, by receiver and tag
	awaited message.Tally // calls of Recv, by source and tag
}

// Balance returns the balance of this rank.
func (c *Counts) Balance() uint64 { return c.balance.Load() }

// CountMessage counts a new call of Send or Recv, and returns its sequence number among the calls
// with the same operation, peer and tag. The rank called priorCollectives collectives before this
// call, and has completed the given number of them. The caller must hold Mu.
func (c *Counts) CountMessage(
	call *driver.Call, priorCollectives, completed uint64,
) (number uint64) {
	if c.group.Strict {
		c.balance.Add(c.signedWeight(call))
	}

	key := message.Key{Peer: call.Root, Tag: call.Tag}
	if call.Operation == driver.Recv {
		return c.awaited.Count(key, priorCollectives, completed)
	}

	return c.sent.Count(key, priorCollectives, completed)
}

// signedWeight returns the change of the balance by a call of Send or Recv.
func (c *Counts) signedWeight(call *driver.Call) uint64 {
	if call.Operation == driver.Recv {
		return -message.Weight(c.group.Rank, call.Tag)
	}

	return message.Weight(call.Root, call.Tag)
}

// UnbalancedError returns the error of a collective that unmatched messages precede.
func (c *Counts) UnbalancedError(collective uint64) error {
	return &driver.MessageError{
		Fault:  driver.MessagesUnmatched,
		Group:  c.group.Name(),
		Number: collective,
		Ends:   c.MessagesBefore(collective),
	}
}

var _ driver.MessageCounts = (*Group)(nil) // Group embeds Counts

// MessagesBefore returns the counts of this rank's messages before a collective.
func (c *Counts) MessagesBefore(collective uint64) (ends []driver.MessageEnds) {
	ownRank := c.group.Ranks[c.group.Rank]
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for _, sent := range c.sent.CallsBefore(collective) {
		ends = append(ends, driver.MessageEnds{
			From: ownRank, To: c.group.Ranks[sent.Peer], Tag: sent.Tag, Sent: sent.Calls,
		})
	}

	for _, awaited := range c.awaited.CallsBefore(collective) {
		ends = append(ends, driver.MessageEnds{
			From: c.worldRankOf(awaited.Peer), To: ownRank, Tag: awaited.Tag, Received: awaited.Calls,
		})
	}

	return ends
}

// worldRankOf translates the source of a Recv from a group rank to a world rank. It returns
// driver.AnySource unchanged.
func (c *Counts) worldRankOf(source int) int {
	if source == driver.AnySource {
		return source
	}

	return c.group.Ranks[source]
}
