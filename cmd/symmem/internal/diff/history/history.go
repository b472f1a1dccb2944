// Package history describes the allocations, frees and collectives of one rank. It does not depend
// on the format of the file that recorded them.
package history

import (
	"fmt"
	"strings"
)

// A rank has pools of memory and groups of ranks. A file records their events during a time, called
// the trace. The Sequence of a pool lists its events. Example:
//
//	Number  Action         Block  Segment  Offset  Size
//	0       MapSegment     -      0        -       2 MiB   a segment is a range of memory
//	1       Alloc          0      0        0       512     a block is a part of a segment
//	2       Free           0      0        0       512     a kernel may still use the block
//	3       FreeCompleted  0      0        0       512     block 0 can be reused
//	4       Alloc          1      0        0       512     block 1 gets the memory of block 0
//
// The Sequence of a group lists its calls. Each Call has a text, such as "Barrier".

// Action is the kind of an event.
type Action uint8

// The actions.
const (
	Alloc         Action = iota + 1 // allocation of a block
	Free                            // request to free a block, which a stream may still be using
	FreeCompleted                   // end of the block's use on all streams: it can be reused
	MapSegment                      // mapping of a segment
	UnmapSegment                    // unmapping of a segment
	// Call is a call of a group, such as the submission of a collective. In a pool of symmem, it is a
	// reservation of memory, or a note: two numbers of the program, which ranks compare.
	Call
)

// actionNames holds the names of actions in reports. Index 0 is no action, so its name is empty.
var actionNames = [...]string{
	Alloc: "alloc", Free: "free", FreeCompleted: "free completed", MapSegment: "segment",
	UnmapSegment: "segment freed", Call: "call",
}

// String returns the name of the action.
func (a Action) String() string {
	if int(a) < len(actionNames) && actionNames[a] != "" {
		return actionNames[a]
	}

	return fmt.Sprintf("action %d", uint8(a))
}

// IsRequest reports whether the program requested the action. All ranks must make the same
// requests.
func (a Action) IsRequest() bool { return a == Alloc || a == Free || a == Call }

// Event describes one event of a Sequence.
type Event struct {
	// Number is the position of the event, from 0. A trace of symmem counts the events of each pool or
	// group separately, and includes those that it has lost. Other files count all their events.
	Number int64
	// Size is the requested size of a block or the size of a segment, in bytes. In a trace of symmem,
	// a Free has the actual size of the block instead. In a dump of PyTorch's Flight Recorder, the
	// Size of a Call is its number in its group.
	Size      int64
	Bytes     int64 // actual size of a block, or bytes that a collective transfers; 0 if unknown
	Offset    int64 // bytes from the beginning of the segment to the block
	UnixMicro int64 // time in microseconds since 1970, or 0 if unknown
	Segment   int32 // index in Sequence.Segments, or -1 if unknown
	Stream    int32 // number of the stream; 0 is the default stream
	// Block is the number of a block. Blocks are numbered from 0, beginning with the first allocation
	// in the trace. An older block has the number -1. For a Call, Block is an index in Rank.Texts.
	Block  int32
	Stack  int32 // index in Rank.Stacks, or -1 if no call stack was recorded
	Action Action
}

// Class is the kind of a pool, or stands for groups. Only sequences of the same class are compared.
type Class uint8

// The classes.
const (
	DefaultPool Class = iota // PyTorch's default pool
	MemPool                  // pool that the program created (torch.cuda.MemPool)
	GraphPool                // private pool of CUDA graphs
	UnknownPool              // not one pool: all blocks whose pool the file does not state
	SymmemPool               // pool of symmem
	Calls                    // collectives of a group
)

// String returns the name of the class in reports.
func (c Class) String() string {
	names := [...]string{"default pool", "MemPool", "graph pool", "unknown pool", "pool", "group"}
	if int(c) < len(names) {
		return names[c]
	}

	return fmt.Sprintf("class %d", uint8(c))
}

// SegmentInfo describes a segment.
type SegmentInfo struct {
	Address   uint64
	Bytes     int64
	IsInitial bool // mapped before the trace began
}

// InitialBlock describes a block that was allocated before the trace began.
type InitialBlock struct {
	Segment int32 // index in Sequence.Segments
	Offset  int64 // bytes from the beginning of the segment
	Size    int64 // in bytes
}

// Sequence lists the events of a pool or a group in order.
type Sequence struct {
	Class         Class
	ID            string // unique within the class on this rank; ranks may use different IDs
	Events        []Event
	Segments      []SegmentInfo
	InitialBlocks []InitialBlock
	// IsPartial is set if the pool or group may have had events before the trace began.
	IsPartial bool
	// NoPlacesReason states why the places of blocks cannot be compared, or is empty.
	NoPlacesReason string
	// UnsupportedSetting names an allocator setting with which PyTorch's placement cannot be
	// replayed, or is empty.
	UnsupportedSetting string
	// HasMessages is set if the group has messages (sends or receives). Events does not contain them,
	// but they have numbers too, so a collective may have different numbers on two ranks.
	HasMessages bool
}

// Fault describes the failure of a group.
type Fault struct {
	Group     string // ID of the group
	Text      string // description of the failure
	UnixMicro int64  // time in microseconds since 1970, or 0 if unknown
}

// PendingCall describes a call that had not completed when the file was written.
type PendingCall struct {
	Group     string // ID of the group
	Text      string // description of the call
	State     string // state of the call, such as "started"
	UnixMicro int64  // time of the call in microseconds since 1970, or 0 if unknown
}

// Window describes a segment that a group has registered, so that its ranks can use it together.
type Window struct {
	Pool           string // ID of the pool's sequence
	Segment        int32  // number of the segment in the pool
	Bytes          int64  // size of the segment
	Group          string // ID of the group
	IsDeregistered bool   // whether the registration has ended
}

// Frame describes a line of a call stack.
type Frame struct {
	Function string
	File     string
	Line     int64
}

// String formats the frame as file:line function.
func (f Frame) String() string { return fmt.Sprintf("%s:%d %s", f.File, f.Line, f.Function) }

// Rank holds what one file recorded about a rank.
type Rank struct {
	File   string
	Number int // number of the rank in its world
	// World is the number of the rank's world, a set of ranks that communicate. Each process numbers
	// its worlds from 1.
	World int
	// Format names the format of the file and, if World is above 1, the world. Only ranks with the
	// same Format are compared.
	Format string
	// RankCount is the number of ranks in the world, or 0 if the file does not state it.
	RankCount int
	// WorldGroup is the ID of the group of all ranks, or empty if it is unknown.
	WorldGroup string
	// Members maps the ID of a group to the group's ranks, if the file states them.
	Members map[string][]int
	// IsPartial is set if newer records have replaced the beginning of the trace.
	IsPartial bool
	// LacksTrace is set if the file has no recorded events, so the rank cannot be compared.
	LacksTrace   bool
	Sequences    []*Sequence
	Frames       []Frame
	Stacks       [][]int32 // call stacks, as indexes in Frames, innermost frame first
	Texts        []string  // descriptions of calls
	Faults       []Fault
	PendingCalls []PendingCall
	Windows      []Window
	Notes        []string // what cannot be determined from the file

	knownNotes map[string]bool // the notes that AddNote has added
}

// AddNote adds a note to Notes, unless it has already added the same one.
func (r *Rank) AddNote(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if r.knownNotes[text] {
		return
	}

	if r.knownNotes == nil {
		r.knownNotes = map[string]bool{}
	}

	r.knownNotes[text] = true
	r.Notes = append(r.Notes, text)
}

// StackLines returns the call stack of an event as text, innermost frame first. It returns nil if
// no stack was recorded.
func (r *Rank) StackLines(e *Event) []string {
	if e.Stack < 0 || int(e.Stack) >= len(r.Stacks) {
		return nil
	}

	var lines []string
	for _, i := range r.Stacks[e.Stack] {
		lines = append(lines, MakePrintable(r.Frames[i].String()))
	}

	return lines
}

// FindOrAddText returns the index of a text in all, such as Rank.Texts. It appends a text that all
// does not contain yet. indexes maps each text in all to its index.
func FindOrAddText(indexes map[string]int32, all *[]string, text string) int32 {
	index, isKnown := indexes[text]
	if !isKnown {
		index = int32(len(*all))
		indexes[text] = index
		*all = append(*all, text)
	}

	return index
}

// EventText returns the description of an event in reports. It leaves out the place of a block.
func (r *Rank) EventText(e *Event) string {
	switch e.Action {
	case Call:
		return MakePrintable(r.Texts[e.Block])
	case MapSegment, UnmapSegment:
		return fmt.Sprintf("%v of %d B", e.Action, e.Size)
	default: // about a block
		return fmt.Sprintf("%v %d B (stream %d)", e.Action, e.Size, e.Stream)
	}
}

// MakePrintable replaces characters that could garble a terminal with question marks.
func MakePrintable(s string) string {
	return strings.Map(func(c rune) rune {
		isControl := c < ' ' || (c >= 0x7f && c < 0xa0)
		// This range includes characters without a width, and those that change the direction of text.
		mayHideText := c >= 0x200b && c <= 0x202e
		isInvalid := c == 0xfffd // such as a byte that is not UTF-8
		if isControl || mayHideText || isInvalid {
			return '?'
		}

		return c
	}, s)
}
