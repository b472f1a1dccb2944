// Package history describes what the allocators and communicators of one rank did, independently of
// the format of the file that recorded it. The packages that read files create this description,
// and package diff compares it across ranks.
package history

import (
	"fmt"
	"strings"
)

// Action classifies an event.
type Action uint8

const (
	// Alloc allocates a block.
	Alloc Action = iota + 1
	// Free frees a block. Another stream may still use it.
	Free
	// FreeDone makes a freed block available for reuse.
	FreeDone
	// Segment maps a segment.
	Segment
	// SegmentFree unmaps a segment.
	SegmentFree
	// Call submits a collective.
	Call
)

var actionNames = [...]string{
	Alloc: "alloc", Free: "free", FreeDone: "free completed", Segment: "segment",
	SegmentFree: "segment freed", Call: "call",
}

// String returns the name of the action.
func (a Action) String() string {
	if int(a) < len(actionNames) && actionNames[a] != "" {
		return actionNames[a]
	}
	return fmt.Sprintf("action %d", uint8(a))
}

// IsRequest reports whether the action was requested by the program. Ranks must make the same
// requests.
func (a Action) IsRequest() bool { return a == Alloc || a == Free || a == Call }

// Event describes one event of a Sequence.
type Event struct {
	// Number is the index of the event in the file's trace, from 0.
	Number int64
	// Size is the number of bytes requested or, for a segment, the size of the segment.
	Size int64
	// Bytes is the number of bytes that a block occupies or a call transfers. It is 0 if the file
	// does not contain it.
	Bytes int64
	// Offset is the offset within the segment, in bytes.
	Offset int64
	// Time is in microseconds since 1970, UTC. It is 0 if the file does not contain it.
	Time int64
	// Segment is an index in Sequence.Segments. It is -1 if the file does not determine the
	// segment.
	Segment int32
	// Stream is the number of the stream: 0 for the default stream, and from 1 for the others.
	Stream int32
	// Block is the number of the block among the Allocs of the sequence, or -1 if the block is
	// older than the trace. For a Call, it is an index in Rank.Texts.
	Block int32
	// Stack is an index in Rank.Stacks, or -1.
	Stack  int32
	Action Action
}

// Class distinguishes sequences. Only sequences of the same class are compared.
type Class uint8

const (
	// DefaultPool is PyTorch's pool for all memory that belongs to no other pool.
	DefaultPool Class = iota
	// MemPool is a torch.cuda.MemPool.
	MemPool
	// GraphPool is a private pool of CUDA graphs.
	GraphPool
	// UnknownPool collects the events whose pool the file does not determine.
	UnknownPool
	// SymmemPool is a pool of symmem.
	SymmemPool
	// Calls holds the collectives of a group.
	Calls
)

// String returns the name of the class as texts show it.
func (c Class) String() string {
	names := [...]string{"default pool", "MemPool", "graph pool", "unknown pool", "pool", "group"}
	if int(c) < len(names) {
		return names[c]
	}
	return fmt.Sprintf("class %d", uint8(c))
}

// SegmentInfo describes a segment.
type SegmentInfo struct {
	Address uint64
	Bytes   int64
	// Old is set if the segment is older than the trace. Such segments are numbered in the order of
	// their first use in the trace.
	Old bool
}

// OlderBlock describes a block that is older than the trace.
type OlderBlock struct {
	Segment      int32 // as Event.Segment
	Offset, Size int64
}

// Sequence lists the events of a pool or a group, in order.
type Sequence struct {
	Class Class
	// ID identifies the sequence within its class. It may differ between ranks.
	ID       string
	Events   []Event
	Segments []SegmentInfo
	// Older lists the blocks that were live when the trace began, as far as the file describes
	// them.
	Older []OlderBlock
	// Partial is set if the trace may begin after the first event of the pool or group.
	Partial bool
	// NoPlaces states why places cannot be compared, or is empty.
	NoPlaces string
	// NoReplay names the setting that prevents a replay of PyTorch's rule, or is empty.
	NoReplay string
	// First is the number that the first call has in its group.
	First int64
}

// Fault describes the failure of a group.
type Fault struct {
	Group, Text string
	Time        int64 // as Event.Time
}

// Pending describes a call that had not completed when the file was written.
type Pending struct {
	Group, Text, State string
	Time               int64 // as Event.Time
}

// Window describes a segment that was registered with a group.
type Window struct {
	// Pool is the ID of the pool's sequence, and Segment the ordinal of the segment.
	Pool    string
	Segment int32
	Bytes   int64
	Group   string
	// Deregistered is set if the registration has ended.
	Deregistered bool
}

// Frame describes a line of a call stack.
type Frame struct {
	Function, File string
	Line           int64
}

// String formats the frame.
func (f Frame) String() string { return fmt.Sprintf("%s:%d %s", f.File, f.Line, f.Function) }

// Rank holds what one file recorded about a rank.
type Rank struct {
	File   string
	Number int
	// World is the number of the rank's world in its process, counted from 1. The name of a trace
	// contains it. Ranks of different worlds are not compared.
	World int
	// Format names the format of the file, and the world unless it is the first. Ranks whose
	// formats differ are not compared.
	Format    string
	Sequences []*Sequence
	Frames    []Frame
	Stacks    [][]int32 // indexes of Frames, innermost first
	Texts     []string
	Faults    []Fault
	Pending   []Pending
	Windows   []Window
	// Notes lists what the file does not determine. Use Note to add to it.
	Notes []string

	noted map[string]bool // the Notes added by Note
}

// Note adds a note, unless the same note was added before.
func (r *Rank) Note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if r.noted[text] {
		return
	}
	if r.noted == nil {
		r.noted = map[string]bool{}
	}
	r.noted[text] = true
	r.Notes = append(r.Notes, text)
}

// Stack returns the frames of an event, innermost first.
func (r *Rank) Stack(e *Event) []string {
	if e.Stack < 0 || int(e.Stack) >= len(r.Stacks) {
		return nil
	}
	var lines []string
	for _, i := range r.Stacks[e.Stack] {
		lines = append(lines, Clean(r.Frames[i].String()))
	}
	return lines
}

// Text describes an event without its place.
func (r *Rank) Text(e *Event) string {
	if e.Action == Call {
		return Clean(r.Texts[e.Block])
	}
	if e.Action == Segment || e.Action == SegmentFree {
		return fmt.Sprintf("%v of %d B", e.Action, e.Size)
	}
	return fmt.Sprintf("%v %d B (stream %d)", e.Action, e.Size, e.Stream)
}

// Clean replaces characters that could garble a terminal.
func Clean(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c >= 0x7f && c < 0xa0 || c >= 0x200b && c <= 0x202e || c == 0xfffd {
			return '?'
		}
		return c
	}, s)
}
