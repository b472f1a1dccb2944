package shm

import (
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/message"
	"symmem/internal/ranked"
)

// Counts are the messages that this rank has sent and awaited: the data moves elsewhere, and
// collectives compare the counts of all ranks in strict groups.
type Counts struct {
	group *driver.GroupConfig
	// balance is what this rank's calls up to now weigh, in strict groups.
	balance atomic.Uint64

	// Mu also guards what a communicator notes together with the counts.
	Mu      ranked.Mutex[countsMu]
	sent    message.Tally // by receiver; guarded by Mu
	awaited message.Tally // by source; guarded by Mu
}

// Balance is what this rank's messages weigh up to now: 0 with those of all ranks together, once
// each has its other end.
func (c *Counts) Balance() uint64 { return c.balance.Load() }

// CountMessage numbers a message that is called after so many collectives, of which some are done.
// Mu is held.
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

// Unbalanced says that the balances of the ranks do not add up to 0 at a collective, and what this
// rank has sent and received before.
func (c *Counts) Unbalanced(collective uint64) error {
	return &driver.MessageError{
		Fault: driver.MessagesUnmatched, Group: c.group.Name(), Number: collective,
		Ends: c.MessagesBefore(collective),
	}
}

var _ driver.MessageCounts = (*Group)(nil)

// MessagesBefore lists what this rank has sent and received before a collective.
func (c *Counts) MessagesBefore(collective uint64) (ends []driver.MessageEnds) {
	me := c.group.Ranks[c.group.Rank]
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for _, n := range c.sent.Before(collective) {
		ends = append(ends, driver.MessageEnds{
			From: me, To: c.group.Ranks[n.Peer], Tag: n.Tag, Sent: n.Calls,
		})
	}
	for _, n := range c.awaited.Before(collective) {
		ends = append(ends, driver.MessageEnds{
			From: c.worldOf(n.Peer), To: me, Tag: n.Tag, Received: n.Calls,
		})
	}
	return ends
}

// worldOf is the world rank of a group rank or of AnySource.
func (c *Counts) worldOf(source int) int {
	if source == driver.AnySource {
		return source
	}
	return c.group.Ranks[source]
}
