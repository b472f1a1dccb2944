package snapshot

import (
	"encoding/binary"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/cmd/symmem/internal/diff/plain"
)

// stackTable stores each distinct call stack once.
type stackTable struct {
	rank           *history.Rank
	frames         map[history.Frame]int32 // index in rank.Frames
	stacks         map[string]int32        // index in rank.Stacks, by encoded frame indexes
	frameIndexes   []int32                 // of the current stack
	encodedIndexes []byte                  // encoding of frameIndexes
}

const maxFrames = 64 // the innermost frames of a stack, which are kept

// Stacks converts the call stacks in memory snapshots and Flight Recorder dumps.
type Stacks struct {
	table            stackTable
	name, file, line plain.Value // keys of a frame, once hasKeys is set
	hasKeys          bool
}

// NewStacks returns a Stacks that adds stacks to rank.
func NewStacks(rank *history.Rank) *Stacks {
	return &Stacks{table: stackTable{
		rank: rank, frames: map[history.Frame]int32{}, stacks: map[string]int32{},
	}}
}

// Add returns the index of a stack in Rank.Stacks, to which it adds a new stack. The index is -1 if
// frames is not a list or is empty.
func (s *Stacks) Add(d *plain.Document, frames plain.Value) int32 {
	if !d.IsList(frames) {
		return -1
	}
	if id, ok := d.Label(frames); ok {
		return id
	}
	items := d.Items(frames)
	if len(items) == 0 {
		return -1
	}
	if !s.hasKeys {
		s.name, s.file = d.StringValue("name"), d.StringValue("filename")
		s.line, s.hasKeys = d.StringValue("line"), true
	}
	t := &s.table
	t.frameIndexes = t.frameIndexes[:0]
	for _, item := range items[:min(len(items), maxFrames)] {
		if id, ok := s.frameIndex(d, item); ok {
			t.frameIndexes = append(t.frameIndexes, id)
		}
	}
	id := t.findOrAddStack()
	d.ReplaceWithLabel(frames, id)
	return id
}

func (s *Stacks) frameIndex(d *plain.Document, v plain.Value) (int32, bool) {
	if !d.IsDict(v) { // the label of a list is the index of a stack
		return 0, false
	}
	if id, ok := d.Label(v); ok {
		return id, true
	}
	var f history.Frame
	f.Function, _ = d.StringOf(d.Get(v, s.name))
	f.File, _ = d.StringOf(d.Get(v, s.file))
	f.Line, _ = d.Get(v, s.line).Int()
	id, ok := s.table.frames[f]
	if !ok {
		id = int32(len(s.table.rank.Frames))
		s.table.frames[f] = id
		s.table.rank.Frames = append(s.table.rank.Frames, f)
	}
	d.ReplaceWithLabel(v, id)
	return id, true
}

// findOrAddStack returns the index in Rank.Stacks of the stack in t.frameIndexes.
func (t *stackTable) findOrAddStack() int32 {
	t.encodedIndexes = t.encodedIndexes[:0]
	for _, id := range t.frameIndexes {
		t.encodedIndexes = binary.LittleEndian.AppendUint32(t.encodedIndexes, uint32(id))
	}
	if id, ok := t.stacks[string(t.encodedIndexes)]; ok {
		return id
	}
	id := int32(len(t.rank.Stacks))
	t.stacks[string(t.encodedIndexes)] = id
	t.rank.Stacks = append(t.rank.Stacks, append([]int32(nil), t.frameIndexes...))
	return id
}
