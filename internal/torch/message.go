package torch

import (
	"context"
	"fmt"
	"slices"

	"symmem"
)

// Message is a Send or Recv as C asks for it.
type Message struct {
	Operation, Type, Peer, Tag int
	Count                      int64
	Buffer                     uintptr
	Stream                     uintptr
	// Site is the number of the call site, or 0.
	Site uint32
	// From, if set, is told the rank that has sent the message, when a Recv has it.
	From func(rank int)
}

// Message queues one end of a message on a foreign stream. It registers nothing.
func (l *Library) Message(handle uint64, m *Message) error {
	r, g, err := l.find(handle)
	if err != nil {
		return err
	}
	c := Call{Operation: m.Operation, Type: m.Type, Count: m.Count, Root: m.Peer, Site: m.Site}
	c.Send, c.Recv = m.Buffer, m.Buffer // the operation uses one of them
	call, err := c.resolve(g)
	if err != nil {
		return err
	}
	if !call.Operation.PointToPoint() {
		return fmt.Errorf("%v is no message: %w", call.Operation, symmem.ErrInvalid)
	}
	call.Tag = m.Tag
	if m.From != nil && m.Peer == symmem.AnySource {
		call.Arrived = m.From
	}
	s, err := r.stream(m.Stream)
	if err != nil {
		return err
	}
	if err := r.covered(call.Send, call.Recv); err != nil {
		return err
	}
	if err := r.rt.Interop().Do(context.Background(), g.Group, call, s); err != nil {
		return err
	}
	if m.From != nil && m.Peer != symmem.AnySource {
		m.From(m.Peer)
	}
	return nil
}

// Exchange is an AllToAllV as C asks for it. Offsets that are nil are parts one behind the other.
type Exchange struct {
	Type       int
	Splits     symmem.Splits
	Send, Recv uintptr
	Stream     uintptr
	// Site is the number of the call site, or 0.
	Site uint32
}

// Exchange queues an AllToAllV on a foreign stream. It registers nothing.
func (l *Library) Exchange(handle uint64, x *Exchange) error {
	r, g, err := l.find(handle)
	if err != nil {
		return err
	}
	call, err := x.resolve(g)
	if err != nil {
		return err
	}
	s, err := r.stream(x.Stream)
	if err != nil {
		return err
	}
	if err := r.covered(call.Send, call.Recv); err != nil {
		return err
	}
	return r.rt.Interop().Do(context.Background(), g.Group, call, s)
}

// resolve checks the splits and finds the lengths of the buffers.
func (x *Exchange) resolve(g *group) (call symmem.Call, err error) {
	call = symmem.Call{Operation: symmem.OpAllToAllV, At: symmem.Site(x.Site)}
	if call.Type, err = term("element type", types, x.Type); err != nil {
		return call, err
	}
	whole := symmem.Contiguous(x.Splits.SendCounts, x.Splits.RecvCounts)
	if x.Splits.SendOffsets != nil {
		whole.SendOffsets = x.Splits.SendOffsets
	}
	if x.Splits.RecvOffsets != nil {
		whole.RecvOffsets = x.Splits.RecvOffsets
	}
	if err := whole.Validate(g.Size()); err != nil {
		return call, err
	}
	call.Splits = &whole
	size := int64(call.Type.Size())
	call.Send = foreign(x.Send, size*reach(whole.SendCounts, whole.SendOffsets))
	call.Recv = foreign(x.Recv, size*reach(whole.RecvCounts, whole.RecvOffsets))
	return call, nil
}

// reach returns how many elements of a buffer its parts need.
func reach(counts, offsets []int64) int64 {
	ends := make([]int64, len(counts))
	for i, n := range counts {
		if n > 0 {
			ends[i] = offsets[i] + n
		}
	}
	return slices.Max(ends)
}

// covered refuses buffers that lie in pools but not in what was handed out.
func (r *rank) covered(memory ...symmem.Memory) error {
	for _, m := range memory {
		if m.Bytes() == 0 {
			continue
		}
		if p := r.owner(m.Address()); p != nil {
			if err := p.covers(m); err != nil {
				return err
			}
		}
	}
	return nil
}
