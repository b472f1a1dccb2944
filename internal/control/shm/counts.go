package shm

import (
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/message"
	"symmem/internal/ranked"
)

// Counts counts this rank's calls of Send and Recv. Suppose that this is rank 0, and that it sends
// two messages with tag 5 to rank 1. For these, sent counts 2 messages to rank 1 with tag 5.
//
// In strict groups, collectives use the counts to check that each Send has its Recv. Each pair of
// receiver and tag has a pseudo-random weight. Rank 0 has added the weight of (rank 1, tag 5) to
// its balance twice. Rank 1 subtracts it from its balance in each Recv with tag 5, so the balances
// of both ranks add up to 0 after two Recvs.
type Counts struct {
	group   *driver.GroupConfig
	balance atomic.Uint64 // stays 0 unless the group is strict

	// Mu also guards a communicator's fields that change together with the counts.
	Mu      ranked.Mutex[countsMu]
	sent    message.Tally // calls of Send, by receiver and tag; guarded by Mu
	awaited message.Tally // calls of Recv, by source and tag; guarded by Mu
}

// Balance returns this rank's message balance. All ranks' balances add up to 0 if all messages
// match.
func (c *Counts) Balance() uint64 { return c.balance.Load() }

// CountMessage counts a new call of Send or Recv, and returns its number among the calls with the
// same operation, peer and tag. after and completed are the numbers of collectives that this rank
// has called and completed before. The caller must hold Mu.
func (c *Counts) CountMessage(call *driver.Call, after, completed uint64) (number uint64) {
	isRecv := call.Operation == driver.Recv
	tally, weight := &c.sent, message.Weight(call.Root, call.Tag) // Root is the receiver
	if isRecv {
		tally, weight = &c.awaited, -message.Weight(c.group.Rank, call.Tag)
	}

	if c.group.Strict {
		c.balance.Add(weight)
	}

	return tally.Count(message.Key{Peer: call.Root, Tag: call.Tag}, after, completed)
}

// UnbalancedError returns the error of a collective if the ranks' balances do not add up to 0. It
// lists this rank's messages before the collective.
func (c *Counts) UnbalancedError(collective uint64) error {
	return &driver.MessageError{
		Fault:  driver.MessagesUnmatched,
		Group:  c.group.Name(),
		Number: collective,
		Ends:   c.MessagesBefore(collective),
	}
}

var _ driver.MessageCounts = (*Group)(nil)

// MessagesBefore lists how many messages this rank had sent and awaited before a collective.
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

// worldRankOf returns the world rank (number in the whole job) of a Recv's source, which is a group
// rank. It returns driver.AnySource unchanged.
func (c *Counts) worldRankOf(source int) int {
	if source == driver.AnySource {
		return source
	}

	return c.group.Ranks[source]
}
