// Package history describes the actions of one rank's allocators and communicators, independently
// of the file format that recorded them. Readers of files fill in the description, and package diff
// compares it across ranks.
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

// IsRequest reports whether the program requested the event. Ranks must make the same requests.
func (a Action) IsRequest() bool { return a == Alloc || a == Free || a == Call }

// Event describes one event of a Sequence.
type Event struct {
	// Number is the index of the event in the file's trace, from 0.
	Number int64
	// Size is the number of bytes requested or, for a segment, its size.
	Size int64
	// Bytes is the number of bytes that a block occupies or a call transfers, or 0 if the file does
	// not contain it.
	Bytes int64
	// Offset is the offset in the segment, in bytes.
	Offset int64
	// Time is UTC in microseconds since 1970, or 0 if the file does not contain it.
	Time int64
	// Segment is an index of Sequence.Segments, or -1 if the file does not determine it.
	Segment int32
	// Stream is the stream's number: 0 for the default stream; others are numbered from 1.
	Stream int32
	// Block is the number of the block among the sequence's Allocs, or -1 for a block that is older
	// than the trace. For a Call, it is an index of Rank.Texts.
	Block int32
	// Stack is an index of Rank.Stacks, or -1.
	Stack  int32
	Action Action
}

// Class distinguishes sequences. Only sequences of the same class are compared.
type Class uint8

const (
	// DefaultPool is PyTorch's pool for all memory outside other pools.
	DefaultPool Class = iota
	// MemPool is a torch.cuda.MemPool.
	MemPool
	// GraphPool is a private pool of CUDA graphs.
	GraphPool
	// UnknownPool collects events whose pool the file does not determine.
	UnknownPool
	// SymmemPool is a pool of symmem.
	SymmemPool
	// Calls holds the collectives of a group.
	Calls
)

// String returns the class's name in texts.
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
	// Old reports that the segment is older than the trace. Such segments are numbered in the order
	// of their first use in the trace.
	Old bool
}

// OlderBlock describes a block that is older than the trace.
type OlderBlock struct {
	Segment      int32 // as Event.Segment
	Offset, Size int64
}

// Sequence lists the events of a pool or a group in order.
type Sequence struct {
	Class Class
	// ID identifies the sequence among those of its class. It may differ between ranks.
	ID       string
	Events   []Event
	Segments []SegmentInfo
	// Older lists blocks that were live when the trace began, as far as the file describes them.
	Older []OlderBlock
	// Partial reports that the trace may begin after the first event of the pool or group.
	Partial bool
	// NoPlaces states why places cannot be compared, or is empty.
	NoPlaces string
	// NoReplay names the setting that prevents a replay of PyTorch's rule, or is empty.
	NoReplay string
	// First is the number of the first call in its group.
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
	// Pool is the ID of the pool's sequence. Segment is the ordinal of the segment.
	Pool    string
	Segment int32
	Bytes   int64
	Group   string
	// Ended reports that the segment was deregistered.
	Ended bool
}

// Frame describes a line of a call stack.
type Frame struct {
	Function, File string
	Line           int64
}

// String formats the frame.
func (f Frame) String() string { return fmt.Sprintf("%s:%d %s", f.File, f.Line, f.Function) }

// Rank holds one file's record of a rank.
type Rank struct {
	File   string
	Number int
	// World is the number of the rank's world in its process, which is part of the trace's name and
	// counted from 1. Ranks of different worlds are not compared.
	World int
	// Format names the file's format, and the world unless it is the first. Ranks with different
	// formats are not compared.
	Format    string
	Sequences []*Sequence
	Frames    []Frame
	Stacks    [][]int32 // indexes of Frames, innermost first
	Texts     []string
	Faults    []Fault
	Pending   []Pending
	Windows   []Window
	// Notes lists what cannot be determined from the file. Note adds to it.
	Notes []string

	noted map[string]bool // the Notes that Note has added
}

// Note adds a note unless it has been added before.
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
