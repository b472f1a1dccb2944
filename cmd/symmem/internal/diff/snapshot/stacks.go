package snapshot

import (
	"encoding/binary"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/cmd/symmem/internal/diff/plain"
)

// PyTorch's memory snapshots and Flight Recorder dumps contain call stacks. In these files, a stack
// is a list of frames, and a frame is a dict:
//
//	[{"name": "f", "filename": "a.py", "line": 3}, {"name": "main", "filename": "a.py", "line": 9}]
//
// A history.Rank has two tables instead. If these two frames have the indexes 0 and 1 in Frames,
// then Stacks contains the list [0, 1]. Each frame and each stack is in its table only once.
//
// A file can refer to the same list or dict many times. The first time, the type Stacks converts it
// and replaces it in the Document with a label: the index in the table. Later it reads the label.

// maxFrames is the number of innermost frames of a stack that are kept.
const maxFrames = 64

// stackTable adds stacks to the tables of a rank.
type stackTable struct {
	rank   *history.Rank
	frames map[history.Frame]int32 // index in rank.Frames
	stacks map[string]int32        // index in rank.Stacks, by encoded frame indexes

	// The following slices are reused for each stack.
	frameIndexes   []int32 // the current stack, as indexes in rank.Frames
	encodedIndexes []byte  // encoding of frameIndexes, which can be a key of a map
}

// Stacks converts the call stacks of a Document and adds them to a rank.
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

// Add returns the index of a stack in Rank.Stacks. It first adds the stack if it is new. frames is
// a list of dicts, innermost frame first. If frames is empty or not a list, the index is -1.
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
		if index, ok := s.frameIndex(d, item); ok {
			t.frameIndexes = append(t.frameIndexes, index)
		}
	}

	index := t.findOrAddStack()
	d.ReplaceWithLabel(frames, index)
	return index
}

// setKeys finds the keys of frames in the Document at the first call.
func (s *Stacks) setKeys(d *plain.Document) {
	if s.hasKeys {
		return
	}

	s.name = d.StringValue("name")
	s.file = d.StringValue("filename")
	s.line = d.StringValue("line")
	s.hasKeys = true
}

// frameIndex returns the index of the frame v in Rank.Frames. It first adds the frame if it is new.
// It returns false if v is not a dict.
func (s *Stacks) frameIndex(d *plain.Document, v plain.Value) (int32, bool) {
	// A list must not pass, because its label is the index of a stack.
	if !d.IsDict(v) {
		return 0, false
	}

	if index, isLabeled := d.Label(v); isLabeled {
		return index, true
	}

	var f history.Frame // a field remains empty if the dict does not have its key
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

// findOrAddStack returns the index in Rank.Stacks of the current stack. It first adds the stack if
// it is new.
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
