package snapshot

import (
	"encoding/binary"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/cmd/symmem/internal/diff/plain"
)

// PyTorch's memory snapshots and Flight Recorder dumps contain call stacks as lists of dicts:
//
//	[{"name": "f", "filename": "a.py", "line": 3}, {"name": "main", "filename": "a.py", "line": 9}]
//
// A history.Rank stores unique frames in Frames, and unique stacks, as lists of frame indexes, in
// Rank.Stacks. A file can refer to a list or dict many times. Stacks.Add therefore replaces a list
// or dict with a label, the index of the converted stack or frame.

const maxFrames = 64 // of a stack; outer frames beyond them are dropped

// stackTable adds unique frames and stacks to a rank.
type stackTable struct {
	rank   *history.Rank
	frames map[history.Frame]int32 // index in rank.Frames
	stacks map[string]int32        // index in rank.Stacks, by encoded frame indexes

	// Buffers for the current stack.
	frameIndexes   []int32 // in rank.Frames
	encodedIndexes []byte  // frameIndexes as a key of stacks
}

// Stacks converts the call stacks of a Document and adds them to a rank.
type Stacks struct {
	table   stackTable
	hasKeys bool // whether name, file and line are set

	// Keys of the dict of a frame.
	name, file, line plain.Value
}

// NewStacks returns a Stacks for one Document and rank.
func NewStacks(rank *history.Rank) *Stacks {
	return &Stacks{table: stackTable{
		rank: rank, frames: map[history.Frame]int32{}, stacks: map[string]int32{},
	}}
}

// Add adds a stack to Rank.Stacks unless it is present, and returns the index of the stack. frames
// is a list of dicts, innermost frame first. If frames is empty or not a list, Add returns -1.
func (s *Stacks) Add(d *plain.Document, frames plain.Value) int32 {
	if !d.IsList(frames) {
		return -1
	}

	if index, isLabeled := d.Label(frames); isLabeled {
		return index
	}

	items := d.Items(frames)
	if len(items) == 0 {
		return -1
	}

	s.setKeys(d)
	t := &s.table
	t.frameIndexes = t.frameIndexes[:0]
	for _, item := range items[:min(len(items), maxFrames)] {
		if index, ok := s.findOrAddFrame(d, item); ok {
			t.frameIndexes = append(t.frameIndexes, index)
		}
	}

	index := t.findOrAddStack()
	d.ReplaceWithLabel(frames, index)
	return index
}

func (s *Stacks) setKeys(d *plain.Document) {
	if s.hasKeys {
		return
	}

	s.name = d.StringValue("name")
	s.file = d.StringValue("filename")
	s.line = d.StringValue("line")
	s.hasKeys = true
}

// findOrAddFrame returns the index of a frame in Rank.Frames, and adds the frame if it is new. It
// returns false if v is not a dict.
func (s *Stacks) findOrAddFrame(d *plain.Document, v plain.Value) (int32, bool) {
	if !d.IsDict(v) { // v may be a list, whose label is the index of a stack
		return 0, false
	}

	if index, isLabeled := d.Label(v); isLabeled {
		return index, true
	}

	var f history.Frame // fields of missing keys remain empty
	f.Function, _ = d.StringOf(d.Get(v, s.name))
	f.File, _ = d.StringOf(d.Get(v, s.file))
	f.Line, _ = d.Get(v, s.line).Int()
	index, ok := s.table.frames[f]
	if !ok {
		index = int32(len(s.table.rank.Frames))
		s.table.frames[f] = index
		s.table.rank.Frames = append(s.table.rank.Frames, f)
	}

	d.ReplaceWithLabel(v, index)
	return index, true
}

// findOrAddStack returns the index of the stack t.frameIndexes in Rank.Stacks, and adds the stack
// if it is new.
func (t *stackTable) findOrAddStack() int32 {
	t.encodedIndexes = t.encodedIndexes[:0]
	for _, frameIndex := range t.frameIndexes {
		t.encodedIndexes = binary.LittleEndian.AppendUint32(t.encodedIndexes, uint32(frameIndex))
	}

	if index, ok := t.stacks[string(t.encodedIndexes)]; ok {
		return index
	}

	index := int32(len(t.rank.Stacks))
	t.stacks[string(t.encodedIndexes)] = index
	t.rank.Stacks = append(t.rank.Stacks, slices.Clone(t.frameIndexes))
	return index
}
