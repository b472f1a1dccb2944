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
// A file can contain many references to one list or dict. Stacks therefore replaces a converted
// list with a label, which is its index in rank.Stacks, and a dict with its index in rank.Frames.

// Stacks converts the call stacks of one Document and adds them to a rank.
type Stacks struct {
	rank         *history.Rank
	frameIndexes map[history.Frame]int32 // in rank.Frames
	stackIndexes map[string]int32        // in rank.Stacks, by encoded frame indexes

	// The keys in the dict of a frame. Add sets them.
	name, file, line plain.Value
	hasKeys          bool

	// These buffers hold the stack that Add converts.
	stack        []int32 // indexes in rank.Frames
	encodedStack []byte  // key in stackIndexes
}

// NewStacks returns a Stacks for a rank.
func NewStacks(rank *history.Rank) *Stacks {
	return &Stacks{
		rank: rank, frameIndexes: map[history.Frame]int32{}, stackIndexes: map[string]int32{},
	}
}

const maxFrames = 64 // Add drops the outermost frames of larger stacks

// Add adds a stack to rank.Stacks unless it is present, and returns its index. frames is a list of
// dicts, innermost frame first; Add ignores other elements. It returns -1 if frames is empty or not
// a list.
func (s *Stacks) Add(d *plain.Document, frames plain.Value) int32 {
	if !d.IsList(frames) {
		return -1
	}

	if stackIndex, isLabeled := d.Label(frames); isLabeled {
		return stackIndex
	}

	items := d.Items(frames)
	if len(items) == 0 {
		return -1
	}

	s.setKeys(d)
	s.stack = s.stack[:0]
	for _, item := range items[:min(len(items), maxFrames)] {
		if frameIndex, isFrame := s.findOrAddFrame(d, item); isFrame {
			s.stack = append(s.stack, frameIndex)
		}
	}

	stackIndex := s.findOrAddStack()
	d.ReplaceWithLabel(frames, stackIndex)
	return stackIndex
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

// findOrAddFrame returns the index of a frame in rank.Frames, and adds the frame if it is new.
// isFrame is false if v is not a dict.
func (s *Stacks) findOrAddFrame(d *plain.Document, v plain.Value) (index int32, isFrame bool) {
	if !d.IsDict(v) {
		return 0, false
	}

	if index, isLabeled := d.Label(v); isLabeled {
		return index, true
	}

	var f history.Frame
	f.Function, _ = d.StringOf(d.Get(v, s.name))
	f.File, _ = d.StringOf(d.Get(v, s.file))
	f.Line, _ = d.Get(v, s.line).Int()
	index, isKnown := s.frameIndexes[f]
	if !isKnown {
		index = int32(len(s.rank.Frames))
		s.frameIndexes[f] = index
		s.rank.Frames = append(s.rank.Frames, f)
	}

	d.ReplaceWithLabel(v, index)
	return index, true
}

// findOrAddStack returns the index of s.stack in rank.Stacks, and adds the stack if it is new.
func (s *Stacks) findOrAddStack() int32 {
	s.encodedStack = s.encodedStack[:0]
	for _, frameIndex := range s.stack {
		s.encodedStack = binary.LittleEndian.AppendUint32(s.encodedStack, uint32(frameIndex))
	}

	if index, isKnown := s.stackIndexes[string(s.encodedStack)]; isKnown {
		return index
	}

	index := int32(len(s.rank.Stacks))
	s.stackIndexes[string(s.encodedStack)] = index
	s.rank.Stacks = append(s.rank.Stacks, slices.Clone(s.stack))
	return index
}
