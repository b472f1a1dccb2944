// Package own converts symmem's traces to rank histories.
package own

import (
	"fmt"
	"io"
	"strings"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/event"
	"symmem/trace"
)

// Read reads a trace.
func Read(r io.Reader) (*history.Rank, error) {
	c := &converter{
		rank:      &history.Rank{Format: "trace of symmem"},
		sequences: map[sequenceKey]*sequence{}, texts: map[string]int32{}, stacks: map[string]int32{},
	}
	l, err := trace.Scan(r, c.addRecord)
	if err != nil {
		return nil, fmt.Errorf("reading symmem's trace: %w", err)
	}
	c.finish(l)
	return c.rank, nil
}

type converter struct {
	rank        *history.Rank
	sequences   map[sequenceKey]*sequence
	texts       map[string]int32 // index in rank.Texts
	stacks      map[string]int32 // index in rank.Stacks, by call site
	localEvents int              // number of events of pools on which ranks need not agree
	messages    int              // number of sends and receives
}

// sequenceKey identifies a pool or a group.
type sequenceKey struct {
	class history.Class
	pool  uint64 // 0 for a group
	group string
}

// sequence collects the events of a pool or a group.
type sequence struct {
	*history.Sequence
	number   int64              // number of the first event in the trace
	live     map[[2]int64]int32 // block number by segment and offset
	segments map[int32]int32    // index in Segments, by segment number in the trace
	blocks   int32              // number of blocks allocated so far
}

// finish adds to the history what is known only at the end of the trace.
func (c *converter) finish(l *trace.Log) {
	c.rank.Number = l.Rank
	if l.Missing > 0 {
		c.rank.Note("the beginning is missing: newer records have replaced %d records", l.Missing)
	}
	for _, s := range c.sequences {
		if l.Missing > 0 {
			s.Partial, s.FirstCall = true, s.number
		} else {
			s.InitialBlocks = nil // a complete trace has no initial blocks
		}
	}
	if l.Torn > 0 {
		c.rank.Note("%d records are incomplete, because the process was writing them", l.Torn)
	}
	if l.LostTexts > 0 {
		c.rank.Note("some texts did not fit into the trace and are shown as ?")
	}
	if c.localEvents > 0 {
		c.rank.Note("%d events of pools without a domain are left out: ranks need not agree on them",
			c.localEvents)
	}
	if c.messages > 0 {
		c.rank.Note("%d sends and receives are left out: they need not agree between ranks", c.messages)
	}
}

func (c *converter) addRecord(r *trace.Record) {
	switch {
	case r.Kind == event.KindFault:
		c.rank.Faults = append(c.rank.Faults, history.Fault{
			Group: r.Group, Text: r.Text, UnixMicro: r.Time.UnixMicro(),
		})
		c.rank.Note("group %s failed: %s", r.Group, r.Text)
	case r.Kind == event.KindRestart:
		c.rank.Note("the ranks realigned pool %d of group %s after a fault", r.Pool, r.Group)
	case r.Kind.IsGroupEvent():
		c.addCall(r)
	case r.Kind == event.KindRegister || r.Kind == event.KindDeregister:
		c.addWindow(r)
	case !r.Kind.InHistory():
	case r.Group == "":
		c.localEvents++
	default:
		c.addPlacement(r)
	}
}

// sequence returns the sequence of a pool or group. It creates a missing sequence, whose first
// event has the given number.
func (c *converter) sequence(key sequenceKey, number uint64) *sequence {
	s := c.sequences[key]
	if s == nil {
		id := key.group
		if key.class == history.SymmemPool {
			id = poolID(key.pool, key.group)
		}
		s = &sequence{
			Sequence: &history.Sequence{Class: key.class, ID: id}, number: int64(number),
			live: map[[2]int64]int32{}, segments: map[int32]int32{},
		}
		c.sequences[key] = s
		c.rank.Sequences = append(c.rank.Sequences, s.Sequence)
	}
	return s
}

// text returns the index of a text in Rank.Texts.
func (c *converter) text(text string) int32 {
	n, ok := c.texts[text]
	if !ok {
		n = int32(len(c.rank.Texts))
		c.texts[text] = n
		c.rank.Texts = append(c.rank.Texts, text)
	}
	return n
}

// stack returns the index of a call site in Rank.Stacks.
func (c *converter) stack(site string) int32 {
	if site == "" {
		return -1
	}
	n, ok := c.stacks[site]
	if !ok {
		n = int32(len(c.rank.Stacks))
		c.stacks[site] = n
		file, line, _ := strings.Cut(site, ":")
		f := history.Frame{File: file}
		if _, err := fmt.Sscan(line, &f.Line); err != nil {
			f.File = site
		}
		c.rank.Frames = append(c.rank.Frames, f)
		c.rank.Stacks = append(c.rank.Stacks, []int32{int32(len(c.rank.Frames) - 1)})
	}
	return n
}

// addCall adds a call of a group: a collective, a comparison of values or a step.
func (c *converter) addCall(r *trace.Record) {
	text := r.Call
	switch {
	case strings.HasPrefix(text, "Send ") || strings.HasPrefix(text, "Recv "):
		c.messages++
		return
	case r.Kind != event.KindCollective && r.Operation != "Agree" && r.Kind != event.KindStep:
		text = r.Operation + " of a value " + r.Name // the value may differ between ranks
	case r.Kind != event.KindCollective:
		text = r.String()
	}
	s := c.sequence(sequenceKey{history.Calls, 0, r.Group}, r.Number)
	s.NoPlacesReason = "calls have no places"
	s.Events = append(s.Events, history.Event{
		Number: int64(r.Number), Bytes: r.Bytes, UnixMicro: r.Time.UnixMicro(), Segment: -1,
		Block: c.text(text), Stack: c.stack(r.Site), Action: history.Call,
	})
}

func poolID(pool uint64, group string) string { return fmt.Sprintf("%d of group %s", pool, group) }

// addWindow adds a registration, or marks a registration as ended.
func (c *converter) addWindow(r *trace.Record) {
	if r.Kind == event.KindRegister {
		c.rank.Windows = append(c.rank.Windows, history.Window{
			Pool: poolID(r.Pool, r.Group), Segment: r.Segment, Bytes: r.Size, Group: r.Name,
		})
		return
	}
	for i := len(c.rank.Windows) - 1; i >= 0; i-- {
		w := &c.rank.Windows[i]
		if !w.Deregistered && w.Pool == poolID(r.Pool, r.Group) && w.Segment == r.Segment &&
			w.Group == r.Name {
			w.Deregistered = true
			return
		}
	}
}

// addPlacement adds an event in a pool's history.
func (c *converter) addPlacement(r *trace.Record) {
	s := c.sequence(sequenceKey{history.SymmemPool, r.Pool, r.Group}, r.Number)
	e := history.Event{
		Number: int64(r.Number), Size: r.Requested, Bytes: r.Size, Offset: r.Offset,
		Segment: s.segment(r), Stream: int32(r.Stream), Block: -1, Stack: c.stack(r.Site),
	}
	at := [2]int64{int64(r.Segment), r.Offset}
	switch r.Kind {
	case event.KindSegment:
		e.Action, e.Size = history.MapSegment, r.Size
	case event.KindTrim:
		e.Action, e.Size = history.UnmapSegment, r.Size
	case event.KindAlloc:
		e.Action, e.Block = history.Alloc, s.blocks
		s.live[at] = s.blocks
		s.blocks++
	case event.KindFree, event.KindPark, event.KindDefer, event.KindReturn:
		e.Action, e.Size = history.Free, r.Size
		if n, ok := s.live[at]; ok {
			e.Block = n
		} else if r.Kind != event.KindReturn && e.Segment >= 0 {
			s.InitialBlocks = append(s.InitialBlocks, history.InitialBlock{
				Segment: e.Segment, Offset: e.Offset, Size: e.Size,
			})
		}
		if r.Kind == event.KindReturn {
			e.Action = history.FreeDone
		}
		if r.Kind == event.KindReturn || r.Kind == event.KindFree {
			delete(s.live, at)
		}
	default:
		e.Action, e.Block = history.Call, c.text(r.String())
	}
	s.Events = append(s.Events, e)
}

// segment returns the index of an event's segment in Segments, or -1.
func (s *sequence) segment(r *trace.Record) int32 {
	if r.Segment < 0 {
		return -1
	}
	n, ok := s.segments[r.Segment]
	if !ok {
		n = int32(len(s.Segments))
		s.segments[r.Segment] = n
		s.Segments = append(s.Segments, history.SegmentInfo{
			Bytes: r.Size, Initial: r.Kind != event.KindSegment,
		})
	}
	return n
}
