package page

import "encoding/binary"

// A track shows the events of a pool or a group on one rank. It can have a million events, so their
// fields are encoded in columns: a column holds the values of one field of all events. For example,
// a track has the events 70, 71 and 73 of a rank's file, which allocate 512, 512 and 1024 bytes:
//
//	column      values             encoded as
//	"size"      512, 512, 1024     512, 512, 1024
//	"number"    70, 71, 73         70, 1, 2 (differences from the previous value)
//
// Integers are encoded with variable lengths, so that small ones need fewer bytes. In a column
// whose neighboring values are similar, the differences are smaller than the values.

// Kind classifies an event.
type Kind uint8

// The kinds of events. The encoding contains these numbers.
const (
	Alloc         Kind = iota + 1 // a block was allocated
	Free                          // a block was freed; its memory may still be in use
	FreeDone                      // the memory of a block that was freed earlier became free
	SegmentAdd                    // the pool got a segment, a range of memory for blocks
	SegmentRemove                 // the pool returned a segment
	Call                          // a group called a collective
	Older                         // a block exists that was allocated before the track begins
)

// Event describes an event of a track.
type Event struct {
	Kind    Kind
	Size    int64 // requested bytes, or the size of a segment
	Bytes   int64 // bytes that a block occupies or a call transfers; 0 if unknown
	Offset  int64 // in the segment, in bytes
	Segment int32 // index in Track.Segments; -1 if unknown
	Stream  int32 // number of the stream
	// Block is the number of the block's Alloc in the track, or -1 if it is unknown. In a Call, it is
	// the index of the call's text in Page.Texts.
	Block  int32
	Stack  int32 // result of Page.AddStack; -1 if unknown
	Number int64 // number of the event in the rank's file
	Time   int64 // UTC in microseconds since 1970; 0 if unknown
}

// Track holds the encoded events of a pool or group on one rank.
type Track struct {
	Rank int // index in Page.Ranks
	// First is the number of the first request: an Alloc, a Free or a Call. Request 0 is the first one
	// that is in the tracks of all ranks. So First is negative if this track begins earlier.
	First    int
	Segments []Segment // segments of the pool

	count    int                 // number of events
	columns  [columnCount][]byte // encoded columns
	previous [columnCount]int64  // last value of each column that holds differences
}

// column is an index of Track.columns.
type column int

const (
	columnKind column = iota
	columnSize
	columnBytes
	columnOffset
	columnSegment
	columnStream
	columnBlock
	columnStack
	columnNumber
	columnTime
	columnCount // number of columns
)

// columnNames holds the names of the columns, by which the script of the page finds them.
var columnNames = [columnCount]string{
	"kind", "size", "bytes", "offset", "segment", "stream", "block", "stack", "number", "time",
}

// Len returns the number of events.
func (t *Track) Len() int { return t.count }

// Add appends an event.
//
// The values of a column are not negative. If -1 means unknown in a field, its column holds the
// value plus 1, so that 0 means unknown.
func (t *Track) Add(e *Event) {
	block := int64(e.Block)
	canBeUnknown := e.Kind != Call
	if canBeUnknown {
		block++
	}

	t.count++
	t.columns[columnKind] = append(t.columns[columnKind], byte(e.Kind))
	t.addValue(columnSize, e.Size)
	t.addValue(columnBytes, e.Bytes)
	t.addValue(columnOffset, e.Offset)
	t.addValue(columnSegment, int64(e.Segment)+1)
	t.addValue(columnStream, int64(e.Stream))
	t.addDifference(columnBlock, block)
	t.addValue(columnStack, int64(e.Stack)+1)
	t.addDifference(columnNumber, e.Number)
	t.addDifference(columnTime, e.Time)
}

// addValue appends a value to a column.
func (t *Track) addValue(c column, v int64) { t.columns[c] = appendUint(t.columns[c], v) }

// addDifference appends the difference between a value and the previous value of the column.
func (t *Track) addDifference(c column, v int64) {
	v = clamp(v)
	t.columns[c] = binary.AppendVarint(t.columns[c], v-t.previous[c])
	t.previous[c] = v
}

// maxValue is the largest value in a column. JavaScript represents all integers up to it exactly.
const maxValue = 1<<53 - 1

// clamp returns v if it is in the range from 0 to maxValue. Otherwise, it returns the nearest end
// of the range.
func clamp(v int64) int64 { return min(max(v, 0), maxValue) }

// appendUint appends clamp(v) in an encoding of variable length.
func appendUint(b []byte, v int64) []byte { return binary.AppendUvarint(b, uint64(clamp(v))) }
