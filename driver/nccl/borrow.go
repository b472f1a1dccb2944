package nccl

import (
	"context"
	"fmt"

	"symmem/driver"
)

// lentMemory is a segment of a peer's staging.
type lentMemory struct {
	at     uintptr // where it is mapped, or 0 as long as it is not
	bytes  int64
	failed error
}

// mapPeers maps the mailboxes of the other ranks, and the segment with which their staging begins.
// So messages that fit there need no call to CUDA once they are told of.
func (c *communicator) mapPeers(ctx context.Context) error {
	m := &c.messages
	if m.known == nil {
		return nil
	}
	for peer, rank := range c.cfg.Ranks {
		if peer == c.cfg.Rank {
			continue
		}
		var err error
		if m.outlets[peer].mailbox, err = c.fetchMailbox(ctx, rank); err != nil {
			return err
		}
		lent := &lentMemory{bytes: c.firstStaging()}
		lent.at, err = c.device.lender.Fetch(ctx, rank, stagingKey(c.cfg.ID, 1), lent.bytes)
		if err != nil {
			return err
		}
		m.lent[spot{peer, 1}] = lent
	}
	return nil
}

// lentTo returns the segment in which a message lies. One that its sender has made since is mapped
// in the background: at is 0 until then. m.mu is held.
func (c *communicator) lentTo(l *letter) *lentMemory {
	at := spot{l.source, l.segment}
	lent := c.messages.lent[at]
	if lent == nil {
		lent = &lentMemory{bytes: int64(l.size)}
		c.messages.lent[at] = lent
		c.messages.delivering.Go(func() { c.mapSegment(at, lent) })
	}
	return lent
}

// mapSegment maps a segment of a peer's.
func (c *communicator) mapSegment(at spot, lent *lentMemory) {
	d, rank := c.device, c.cfg.Ranks[at.source]
	ctx, cancel := context.WithTimeout(context.Background(), d.cfg.Timeout)
	defer cancel()
	go func() {
		select {
		case <-c.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	address, err := d.lender.Fetch(ctx, rank, stagingKey(c.cfg.ID, int(at.number)), lent.bytes)
	if err != nil && c.messages.known.Lost(at.source) {
		err = &driver.RankLostError{
			Ranks: []int{rank}, Doing: "fetching a message in group " + c.cfg.Name(),
			Members: c.cfg.Ranks,
		}
	}
	if err != nil {
		err = fmt.Errorf("fetching a message of rank %d of the world: %w", rank, err)
	}
	c.messages.mu.Lock()
	lent.at, lent.failed = address, err
	c.messages.mu.Unlock()
	c.messages.own.bell().ring()
}

// withdrawMailbox ends the offer of this rank's mailbox, which the peers have mapped.
func (c *communicator) withdrawMailbox() error {
	m := &c.messages
	if m.file == nil {
		return nil
	}
	err := c.device.lender.Withdraw(mailboxKey(c.cfg.ID), m.file)
	m.file = nil
	return err
}
