package nccl

import (
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/internal/p2p"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/control"
)

var (
	_ p2p.Owner            = (*communicator)(nil)
	_ driver.MessageCounts = (*communicator)(nil)
)

// openMessages makes messages possible where the ranks have GPUs that run their kernels.
func (c *communicator) openMessages() error {
	if c.withoutKernels() != "" {
		return nil
	}
	return c.messages.Open(p2p.Group{
		Owner: c, Device: &c.device.messages, Config: &c.cfg, Plane: c.plane, Busy: &c.busy,
		Check: &c.check, Ended: c.ended, Mu: &c.mu,
	})
}

// withoutMessages says why ranks of the group cannot send messages to each other.
func (c *communicator) withoutMessages() error {
	if why := c.withoutKernels(); why != "" {
		return fmt.Errorf("messages: %s: %w", why, driver.ErrUnsupported)
	}
	return fmt.Errorf("messages between ranks of several machines: %w", driver.ErrUnsupported)
}

// withoutKernels says why some rank of the group runs no kernels of our own, or is empty.
func (c *communicator) withoutKernels() string {
	for i, m := range c.members {
		if m.NoKernels != "" {
			return fmt.Sprintf("rank %d of the world: %s", c.cfg.Ranks[i], control.Printable(m.NoKernels))
		}
	}
	return ""
}

// messageOf is the plan of a message, as package p2p knows it.
func messageOf(p *plan) *p2p.Call {
	at := p.send
	if p.Operation == driver.Recv {
		at = p.recv
	}
	return &p2p.Call{Call: &p.Call, Address: at}
}

// NoteMessage remembers a message that is about to be queued. s.Mu and c.mu are held.
func (c *communicator) NoteMessage(s *stream.Stream, call *driver.Call) {
	s.Note(c, c.history.message(call), call.Operation)
}

// MessagesBefore lists what this rank has sent and received before a collective.
func (c *communicator) MessagesBefore(collective uint64) []driver.MessageEnds {
	return c.messages.Before(collective)
}
