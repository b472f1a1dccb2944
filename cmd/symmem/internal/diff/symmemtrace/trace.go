// Package symmemtrace reads symmem's traces.
package symmemtrace

import (
	"fmt"
	"io"
	"strings"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/event"
	"symmem/trace"
)

// maxRanks limits the size of a world in a trace, so that a damaged file cannot exhaust memory.
const maxRanks = 1 << 20

// Read reads the trace of a rank. It leaves out events on which ranks need not agree: sends,
// receives, and events of pools that only one rank uses.
func Read(r io.Reader) (*history.Rank, error) {
	c := &converter{
		rank:        &history.Rank{Format: "trace of symmem"},
		sequences:   map[sequenceKey]*sequence{},
		textIndexes: map[string]int32{}, stackIndexes: map[string]int32{},
		messageGroups: map[string]bool{},
	}
	l, err := trace.Scan(r, c.addRecord)
	if err != nil {
		return nil, fmt.Errorf("reading symmem's trace: %w", err)
	}

	if l.Rank >= l.Size || l.Size > maxRanks {
		return nil, fmt.Errorf("%w: its rank is %d, and its world has %d ranks", trace.ErrFormat,
			l.Rank, l.Size)
	}

	c.finish(l)
	return c.rank, nil
}

type converter struct {
	rank            *history.Rank
	sequences       map[sequenceKey]*sequence
	textIndexes     map[string]int32 // index in rank.Texts, by text
	stackIndexes    map[string]int32 // index in rank.Stacks, by call site
	localEventCount int              // number of events of pools that only this rank uses
	messageCount    int              // number of sends and receives
	messageGroups   map[string]bool  // whether a group has sends or receives
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
	liveBlocks     map[[2]int64]int32 // block number by segment and offset
	segmentIndexes map[int32]int32    // index in Segments, by segment number in the trace
	blockCount     int32              // number of blocks allocated so far
}

// finish completes the rank after the last record. l is the trace without its records.
func (c *converter) finish(l *trace.Log) {
	c.rank.Number, c.rank.RankCount, c.rank.WorldGroup = l.Rank, l.Size, "world"
	c.rank.IsPartial = l.Missing > 0
	if l.Missing > 0 {
		c.rank.AddNote("the beginning is missing: newer records have replaced %d records", l.Missing)
	}

	for key, s := range c.sequences {
		s.HasMessages = key.class == history.Calls && c.messageGroups[key.group]
		if l.Missing > 0 {
			s.IsPartial = true
		} else {
			s.InitialBlocks = nil // a complete trace has no initial blocks
		}
	}

	if l.IncompleteRecords > 0 {
		c.rank.AddNote("%d records are incomplete, because the process was writing them",
			l.IncompleteRecords)
	}

	if l.LostTexts > 0 {
		c.rank.AddNote("some texts did not fit into the trace and are shown as ?")
	}

	if c.localEventCount > 0 {
		c.rank.AddNote("%d events of pools without a domain are left out: ranks need not agree on them",
			c.localEventCount)
	}

	if c.messageCount > 0 {
		c.rank.AddNote("%d sends and receives are left out: they need not agree between ranks",
			c.messageCount)
	}
}

func (c *converter) addRecord(r *trace.Record) {
	switch {
	case r.Kind == event.KindFault:
		c.rank.Faults = append(c.rank.Faults, history.Fault{
			Group: r.Group, Text: r.Text, UnixMicro: r.Time.UnixMicro(),
		})
		c.rank.AddNote("group %s failed: %s", r.Group, r.Text)
	case r.Kind == event.KindRestart:
		c.rank.AddNote("the ranks realigned pool %d of group %s after a fault", r.Pool, r.Group)
	case r.Kind.IsGroupEvent():
		c.addCall(r)
	case r.Kind == event.KindRegister || r.Kind == event.KindDeregister:
		c.addWindow(r)
	case !r.Kind.InHistory(): // ranks need not agree on it
	case r.Group == "":
		c.localEventCount++
	default:
		c.addPlacement(r)
	}
}

// findOrAddSequence returns the sequence of a pool or group, which it adds if it is new.
func (c *converter) findOrAddSequence(key sequenceKey) *sequence {
	s := c.sequences[key]
	if s == nil {
		id := key.group
		if key.class == history.SymmemPool {
			id = poolSequenceID(key.pool, key.group)
		}

		s = &sequence{
			Sequence:   &history.Sequence{Class: key.class, ID: id},
			liveBlocks: map[[2]int64]int32{}, segmentIndexes: map[int32]int32{},
		}
		c.sequences[key] = s
		c.rank.Sequences = append(c.rank.Sequences, s.Sequence)
	}

	return s
}

// textIndex returns the index of a text in Rank.Texts, to which it adds a new text.
func (c *converter) textIndex(text string) int32 {
	return history.FindOrAddText(c.textIndexes, &c.rank.Texts, text)
}

// stackIndex returns the index in Rank.Stacks of the stack that consists of a call site, or -1 for
// an empty call site. It adds a new stack.
func (c *converter) stackIndex(site string) int32 {
	if site == "" {
		return -1
	}

	index, ok := c.stackIndexes[site]
	if !ok {
		index = int32(len(c.rank.Stacks))
		c.stackIndexes[site] = index
		file, line, _ := strings.Cut(site, ":")
		f := history.Frame{File: file}
		if _, err := fmt.Sscan(line, &f.Line); err != nil {
			f.File = site // not of the form file:line
		}

		c.rank.Frames = append(c.rank.Frames, f)
		c.rank.Stacks = append(c.rank.Stacks, []int32{int32(len(c.rank.Frames) - 1)})
	}

	return index
}

// addCall adds a call of a group: a collective, a comparison of values or a step. It only counts
// sends and receives.
func (c *converter) addCall(r *trace.Record) {
	text := r.Call
	if strings.HasPrefix(text, "Send ") || strings.HasPrefix(text, "Recv ") {
		c.messageCount++
		c.messageGroups[r.Group] = true
		return
	}

	switch mustValuesAgree := r.Operation == "Agree" || r.Kind == event.KindStep; {
	case r.Kind == event.KindCollective:
	case mustValuesAgree:
		text = r.String()
	default:
		text = r.Operation + " of a value " + r.Name
	}

	s := c.findOrAddSequence(sequenceKey{history.Calls, 0, r.Group})
	s.NoPlacesReason = "calls have no places"
	s.Events = append(s.Events, history.Event{
		Number: int64(r.Number), Bytes: r.Bytes, UnixMicro: r.Time.UnixMicro(), Segment: -1,
		Block: c.textIndex(text), Stack: c.stackIndex(r.Site), Action: history.Call,
	})
}

func poolSequenceID(pool uint64, group string) string {
	return fmt.Sprintf("%d of group %s", pool, group)
}

// addWindow adds the registration of a segment with the group r.Name. For a deregistration, it
// marks the last matching registration as ended.
func (c *converter) addWindow(r *trace.Record) {
	added := history.Window{
		Pool: poolSequenceID(r.Pool, r.Group), Segment: r.Segment, Bytes: r.Size, Group: r.Name,
	}
	if r.Kind == event.KindRegister {
		c.rank.Windows = append(c.rank.Windows, added)
		return
	}

	for i := len(c.rank.Windows) - 1; i >= 0; i-- {
		w := &c.rank.Windows[i]
		isSame := w.Pool == added.Pool && w.Segment == added.Segment && w.Group == added.Group
		if isSame && !w.IsDeregistered {
			w.IsDeregistered = true
			return
		}
	}
}

// addPlacement adds an event of a pool, and tracks which blocks are live.
func (c *converter) addPlacement(r *trace.Record) {
	s := c.findOrAddSequence(sequenceKey{history.SymmemPool, r.Pool, r.Group})
	e := history.Event{
		Number: int64(r.Number), Size: r.Requested, Bytes: r.Size, Offset: r.Offset,
		Segment: s.segmentIndex(r), Stream: int32(r.Stream), Block: -1, Stack: c.stackIndex(r.Site),
	}
	place := [2]int64{int64(r.Segment), r.Offset}
	switch r.Kind {
	case event.KindSegment:
		e.Action, e.Size = history.MapSegment, r.Size
	case event.KindTrim:
		e.Action, e.Size = history.UnmapSegment, r.Size
	case event.KindAlloc:
		e.Action, e.Block = history.Alloc, s.blockCount
		s.liveBlocks[place] = s.blockCount
		s.blockCount++
	case event.KindFree, event.KindPark, event.KindDefer, event.KindReturn:
		e.Action, e.Size = history.Free, r.Size
		if block, ok := s.liveBlocks[place]; ok {
			e.Block = block
		} else if r.Kind != event.KindReturn && e.Segment >= 0 {
			s.InitialBlocks = append(s.InitialBlocks, history.InitialBlock{
				Segment: e.Segment, Offset: e.Offset, Size: e.Size,
			})
		}

		if r.Kind == event.KindReturn {
			e.Action = history.FreeCompleted
		}

		if r.Kind == event.KindReturn || r.Kind == event.KindFree {
			delete(s.liveBlocks, place)
		}

	default: // KindReserve or KindNote
		e.Action, e.Block = history.Call, c.textIndex(r.String())
	}

	s.Events = append(s.Events, e)
}

// segmentIndex returns the index in Segments of a record's segment, or -1 if the record has none.
// It adds a new segment.
func (s *sequence) segmentIndex(r *trace.Record) int32 {
	if r.Segment < 0 {
		return -1
	}

	index, ok := s.segmentIndexes[r.Segment]
	if !ok {
		index = int32(len(s.Segments))
		s.segmentIndexes[r.Segment] = index
		s.Segments = append(s.Segments, history.SegmentInfo{
			Bytes: r.Size, IsInitial: r.Kind != event.KindSegment,
		})
	}

	return index
}
