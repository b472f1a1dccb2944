// Package history describes what the allocators and communicators of one rank did, independently
// of the format of the file that recorded it. The packages that read files produce a Rank for
// each file, and package diff compares the Ranks.
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
	// Free requests that a block be freed. The block is not reused while another stream may still
	// be using it.
	Free
	// FreeDone completes a Free: from then on, the block can be reused.
	FreeDone
	// MapSegment maps a segment.
	MapSegment
	// UnmapSegment unmaps a segment.
	UnmapSegment
	// Call submits a collective.
	Call
)

var actionNames = [...]string{
	Alloc: "alloc", Free: "free", FreeDone: "free completed", MapSegment: "segment",
	UnmapSegment: "segment freed", Call: "call",
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
	// Size is the number of bytes that the program requested. For a segment event, it is the size
	// of the segment in bytes.
	Size int64
	// Bytes is the number of bytes that a block occupies or that a call transfers, or 0 if the file
	// does not contain that number.
	Bytes int64
	// Offset is the offset within the segment, in bytes.
	Offset int64
	// Time is the time of the event in microseconds since 1970 (UTC), or 0 if the file does not
	// contain it.
	Time int64
	// Segment is an index in Sequence.Segments, or -1 if the segment cannot be determined from the
	// file.
	Segment int32
	// Stream is the number of the stream. The default stream is 0, and the others are counted from
	// 1.
	Stream int32
	// Block is the number of the block, counting the Allocs of the sequence from 0. It is -1 if the
	// block was allocated before the trace began. For a Call, it is an index in Rank.Texts.
	Block int32
	// Stack is an index in Rank.Stacks, or -1 if the file has no stack for the event.
	Stack  int32
	Action Action
}

// Class states what kind of pool or group the events of a Sequence belong to. Only sequences of
// the same class are compared.
type Class uint8

const (
	// DefaultPool is PyTorch's pool for all memory that belongs to no other pool.
	DefaultPool Class = iota
	// MemPool is a torch.cuda.MemPool.
	MemPool
	// GraphPool is a private pool of CUDA graphs.
	GraphPool
	// UnknownPool holds the events whose pool cannot be determined from the file.
	UnknownPool
	// SymmemPool is a pool of symmem.
	SymmemPool
	// Calls holds the collectives of a group.
	Calls
)

// String returns the name of the class, as shown in reports.
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
	// Initial is set if the segment was mapped before the trace began. Such segments are numbered in
	// the order of their first use in the trace.
	Initial bool
}

// InitialBlock describes a block that was allocated before the trace began.
type InitialBlock struct {
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
	// InitialBlocks lists the blocks in the file that were already live when the trace began.
	InitialBlocks []InitialBlock
	// Partial is set if the pool or group may have had events before the trace began.
	Partial bool
	// NoPlacesReason is the reason why the places of blocks cannot be compared, or empty if they can.
	NoPlacesReason string
	// UnsupportedSetting names the allocator setting that makes it impossible to replay PyTorch's placement
	// rule, or is empty.
	UnsupportedSetting string
	// First is the number of the sequence's first call within its group.
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

// Window describes the registration of a segment with a group.
type Window struct {
	// Pool is the ID of the pool's sequence, and Segment is the segment's ordinal in the pool.
	Pool    string
	Segment int32
	Bytes   int64
	Group   string
	// Deregistered is set if the segment was deregistered later.
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
	// World is the number of the rank's world in its process, counted from 1 and taken from the
	// name of the trace file. Ranks of different worlds are not compared.
	World int
	// Format names the format of the file. If World is above 1, Format also names the world. Ranks
	// whose formats differ are not compared.
	Format    string
	Sequences []*Sequence
	Frames    []Frame
	Stacks    [][]int32 // indexes of Frames, innermost first
	Texts     []string
	Faults    []Fault
	Pending   []Pending
	Windows   []Window
	// Notes lists what cannot be determined from the file. Use Note to add to it.
	Notes []string

	noted map[string]bool // set of the Notes added by Note
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

// Stack returns the call stack of an event as text, innermost frame first.
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

// Text describes an event, but not where its block was placed.
func (r *Rank) Text(e *Event) string {
	if e.Action == Call {
		return Clean(r.Texts[e.Block])
	}
	if e.Action == MapSegment || e.Action == UnmapSegment {
		return fmt.Sprintf("%v of %d B", e.Action, e.Size)
	}
	return fmt.Sprintf("%v %d B (stream %d)", e.Action, e.Size, e.Stream)
}

// Clean replaces control characters and other characters that could garble a terminal with
// question marks.
func Clean(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c >= 0x7f && c < 0xa0 || c >= 0x200b && c <= 0x202e || c == 0xfffd {
			return '?'
		}
		return c
	}, s)
}
