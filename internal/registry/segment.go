package registry

import "fmt"

// Segment is one physical allocation of the pool.
type Segment struct {
	// Ordinal numbers the segments of a pool from 0. A pool gives none out again.
	Ordinal int32
	// Bytes is the mapped size.
	Bytes int64
}

// String names s as reports do.
func (s Segment) String() string {
	return fmt.Sprintf("segment %d (%d B)", s.Ordinal, s.Bytes)
}

// record is one entry of the log.
type record struct {
	segment   Segment
	windows   int32 // groups that it is registered with
	live      bool  // false: a tombstone
	releasing bool
}
