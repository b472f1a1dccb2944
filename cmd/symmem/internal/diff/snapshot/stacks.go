package snapshot

import (
	"encoding/binary"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/cmd/symmem/internal/diff/plain"
)

// stackTable adds stacks to a rank. It stores each distinct frame and stack once.
type stackTable struct {
	rank   *history.Rank
	frames map[history.Frame]int32 // index in rank.Frames
	stacks map[string]int32        // index in rank.Stacks, by encoded frame indexes

	// The following slices are reused for each stack.
	frameIndexes   []int32 // frames of the current stack, as indexes in rank.Frames
	encodedIndexes []byte  // encoding of frameIndexes, which can be a key of a map
}

const maxFrames = 64 // number of innermost frames of a stack that are kept

// Stacks converts the call stacks in memory snapshots and Flight Recorder dumps. A pickle refers to
// the same list or frame many times. Stacks converts each only once, and then replaces it in the
// Document with a label: the index in Rank.Stacks or Rank.Frames.
type Stacks struct {
	table   stackTable
	hasKeys bool // whether the following fields are set

	// The keys of a frame, as Values of the Document.
	name, file, line plain.Value
}

// NewStacks returns a Stacks that adds stacks to rank.
func NewStacks(rank *history.Rank) *Stacks {
	return &Stacks{table: stackTable{
		rank: rank, frames: map[history.Frame]int32{}, stacks: map[string]int32{},
	}}
}

// Add returns the index of a stack in Rank.Stacks, to which it adds a new stack. frames is a list
// of dicts, innermost frame first. If frames is empty or not a list, the index is -1.
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

	if !s.hasKeys {
		s.name = d.StringValue("name")
		s.file = d.StringValue("filename")
		s.line = d.StringValue("line")
		s.hasKeys = true
	}

	t := &s.table
	t.frameIndexes = t.frameIndexes[:0]
	for _, item := range items[:min(len(items), maxFrames)] {
		if index, ok := s.frameIndex(d, item); ok {
			t.frameIndexes = append(t.frameIndexes, index)
		}
	}

	index := t.findOrAddStack()
	d.ReplaceWithLabel(frames, index)
	return index
}

// frameIndex returns the index of the frame v in Rank.Frames, to which it adds a new frame. It
// returns false if v is not a dict.
func (s *Stacks) frameIndex(d *plain.Document, v plain.Value) (int32, bool) {
	if !d.IsDict(v) { // such as a list, whose label would be the index of a stack
		return 0, false
	}

	if index, isLabeled := d.Label(v); isLabeled {
		return index, true
	}

	var f history.Frame // fields that the file lacks remain empty
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

// findOrAddStack returns the index in Rank.Stacks of the stack in t.frameIndexes. It adds the
// stack if it is new.
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
