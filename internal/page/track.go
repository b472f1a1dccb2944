package page

import "encoding/binary"

// Kind classifies an event.
type Kind uint8

// The kinds of events. An Older event represents a block that was allocated before the track
// begins.
const (
	Alloc Kind = iota + 1
	Free
	FreeDone
	SegmentAdd
	SegmentRemove
	Call
	Older
)

// Event describes an event of a track. The package comment describes its fields for each Kind.
// Unknown segments, blocks and stacks are -1.
type Event struct {
	Kind        Kind
	Size, Bytes int64
	Offset      int64
	Segment     int32
	Stream      int32
	Block       int32
	Stack       int32
	Number      int64
	Time        int64
}

// Track holds the encoded events of a pool or group on one rank.
type Track struct {
	Rank int // index in Page.Ranks
	// First is the number of the first request. Request 0 is the first one in the tracks of all
	// ranks, so First is negative if this track begins earlier.
	First    int
	Segments []Segment

	count    int                 // number of events
	columns  [columnCount][]byte // encoded values
	previous [columnCount]int64  // last value of each column that stores differences
}

// column is a field of all events of a track, stored together.
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
	columnCount
)

var columnNames = [columnCount]string{
	"kind", "size", "bytes", "offset", "segment", "stream", "block", "stack", "number", "time",
}

// Len returns the number of events.
func (t *Track) Len() int { return t.count }

// Add appends an event. It adds 1 to segments, stacks and blocks, so that unknown ones are stored
// as 0. The Block of a Call, an index in Page.Texts, is stored unchanged.
func (t *Track) Add(e *Event) {
	block := int64(e.Block)
	if e.Kind != Call {
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

// addDifference appends the difference between a value and the previous value of the column. It is
// for columns in which neighboring values are similar.
func (t *Track) addDifference(c column, v int64) {
	v = clamp(v)
	t.columns[c] = binary.AppendVarint(t.columns[c], v-t.previous[c])
	t.previous[c] = v
}

// maxValue is the largest integer up to which JavaScript represents all integers exactly.
const maxValue = 1<<53 - 1

// clamp returns the integer from 0 to maxValue that is closest to v.
func clamp(v int64) int64 { return min(max(v, 0), maxValue) }

// appendUint appends a clamped integer in the encoding of binary.AppendUvarint.
func appendUint(b []byte, v int64) []byte { return binary.AppendUvarint(b, uint64(clamp(v))) }
