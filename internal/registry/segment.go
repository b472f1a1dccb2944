package registry

import "fmt"

// Segment is one physical allocation of the pool.
type Segment struct {
	// Ordinal numbers the segments of a pool from 0.
	Ordinal int32
	// Generation counts how often the ordinal has been used before.
	Generation uint32
	// Bytes is the mapped size.
	Bytes int64
}

// String names s as reports do.
func (s Segment) String() string {
	return fmt.Sprintf("segment %d generation %d (%d B)", s.Ordinal, s.Generation, s.Bytes)
}

// SegmentState is where a segment stands; see the package comment.
type SegmentState uint8

// The states of a segment.
const (
	// Gone: never tracked, or untracked.
	Gone SegmentState = iota
	// Tracked: registered with no group.
	Tracked
	// Registered: registered with at least one group.
	Registered
	// Releasing: about to be unmapped; its windows must go first.
	Releasing
)

var segmentStateNames = [...]string{"gone", "tracked", "registered", "releasing"}

// String returns the word for s.
func (s SegmentState) String() string {
	if int(s) >= len(segmentStateNames) {
		return fmt.Sprintf("state %d", uint8(s))
	}
	return segmentStateNames[s]
}

// record is one entry of the log.
type record struct {
	segment   Segment
	windows   int32 // groups that it is registered with
	live      bool  // false: a tombstone
	releasing bool
}

func (r *record) state() SegmentState {
	switch {
	case !r.live:
		return Gone
	case r.releasing:
		return Releasing
	case r.windows > 0:
		return Registered
	}
	return Tracked
}
