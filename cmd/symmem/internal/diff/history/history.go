// Package history describes what the allocators and communicators of one rank did, whichever file
// recorded it. Readers of files fill it in, and package diff compares it across ranks.
package history

import (
	"fmt"
	"strings"
)

// Action classifies an event.
type Action uint8

// The actions.
const (
	// Alloc allocates a block.
	Alloc Action = iota + 1
	// Free frees a block. Another stream may still use it.
	Free
	// FreeDone makes a freed block available again.
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
	// Size is the number of bytes requested. For a segment it is the size.
	Size int64
	// Bytes is the number of bytes that a block occupies or a call transfers, or 0 if the file does
	// not contain it.
	Bytes int64
	// Offset is the place in the segment, in bytes.
	Offset int64
	// Time is UTC in microseconds since 1970, or 0 if the file does not contain it.
	Time int64
	// Segment is an index of Sequence.Segments, or -1 if the file does not determine it.
	Segment int32
	// Stream numbers the streams: 0 is the default stream, others count from 1.
	Stream int32
	// Block is the number of the block among the sequence's Allocs, or -1 for a block that is older
	// than the trace. For a Call it is an index of Rank.Texts.
	Block int32
	// Stack is an index of Rank.Stacks, or -1.
	Stack  int32
	Action Action
}

// Class distinguishes sequences. Only sequences of the same class are compared.
type Class uint8

// The classes.
const (
	// DefaultPool is PyTorch's pool of all memory outside other pools.
	DefaultPool Class = iota
	// MemPool is a torch.cuda.MemPool.
	MemPool
	// GraphPool is a private pool of CUDA graphs.
	GraphPool
	// UnknownPool collects events whose pool the file does not determine.
	UnknownPool
	// SymmemPool is a pool of symmem.
	SymmemPool
	// Calls are the collectives of a group.
	Calls
)

// String names the class in texts.
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
	// Old reports that the segment is older than the trace. Such segments have numbers in the order
	// of their first use in the trace.
	Old bool
}

// OlderBlock is a block that is older than the trace.
type OlderBlock struct {
	Segment      int32 // as Event.Segment
	Offset, Size int64
}

// Sequence lists the events of a pool or a group in order.
type Sequence struct {
	Class Class
	// ID identifies the sequence among those of its class. IDs may differ between ranks.
	ID       string
	Events   []Event
	Segments []SegmentInfo
	// Older lists blocks that were live when the trace began, as far as the file contains them.
	Older []OlderBlock
	// Partial reports that the trace may begin after the pool's or group's first event.
	Partial bool
	// NoPlaces states why places cannot be compared, or is empty.
	NoPlaces string
	// NoReplay names the setting that keeps PyTorch's rule from being replayed, or is empty.
	NoReplay string
	// First is the number of the first call in its group.
	First int64
}

// Fault is the failure of a group.
type Fault struct {
	Group, Text string
	Time        int64 // as Event.Time
}

// Pending is a call that had not completed when the file was written.
type Pending struct {
	Group, Text, State string
	Time               int64 // as Event.Time
}

// Window is a segment that was registered with a group.
type Window struct {
	// Pool is the ID of the pool's sequence. Segment is the ordinal of the segment.
	Pool    string
	Segment int32
	Bytes   int64
	Group   string
	// Ended reports that the segment was deregistered.
	Ended bool
}

// Frame is a line of a call stack.
type Frame struct {
	Function, File string
	Line           int64
}

// String formats the frame.
func (f Frame) String() string { return fmt.Sprintf("%s:%d %s", f.File, f.Line, f.Function) }

// Rank holds what one file records of a rank.
type Rank struct {
	File   string
	Number int
	// World numbers the worlds of a process by the name of a trace, counted from 1. Ranks of
	// different worlds are not compared.
	World int
	// Format names the file's format, and the world if it is not the first. Ranks with different
	// formats are not compared.
	Format    string
	Sequences []*Sequence
	Frames    []Frame
	Stacks    [][]int32 // indexes of Frames, innermost first
	Texts     []string
	Faults    []Fault
	Pending   []Pending
	Windows   []Window
	// Notes states what the file cannot tell. Note adds to it.
	Notes []string

	noted map[string]bool // the Notes that Note has added
}

// Note adds a note, once.
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
