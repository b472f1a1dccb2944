package page

import "encoding/binary"

// Kind classifies an event.
type Kind uint8

// The kinds of events. The data contain these numbers.
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
	Block   int32 // number of the Alloc in the track; -1 if unknown; index in Page.Texts for a Call
	Stack   int32 // result of Page.AddStack; -1 if unknown
	Number  int64 // number of the event in the rank's file
	Time    int64 // UTC in microseconds since 1970; 0 if unknown
}

// Track holds the encoded events of a pool or group on one rank.
type Track struct {
	Rank int // index in Page.Ranks
	// First is the number of the first request (Alloc, Free or Call). Request 0 is the first one
	// that is in the tracks of all ranks, so First is negative if this track begins earlier.
	First    int
	Segments []Segment // segments of the pool, to which events refer by index

	count    int                 // number of events
	columns  [columnCount][]byte // encoded values of each column
	previous [columnCount]int64  // last value of each column that stores differences
}

// column is an index of Track.columns. A column holds the values of one field of all events.
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

// columnNames holds the names of the columns in the header of the page.
var columnNames = [columnCount]string{
	"kind", "size", "bytes", "offset", "segment", "stream", "block", "stack", "number", "time",
}

// Len returns the number of events.
func (t *Track) Len() int { return t.count }

// Add appends an event. It stores segments, stacks and blocks plus 1, so that 0 means unknown. The
// Block of a Call, an index in Page.Texts, is stored unchanged.
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

// addDifference appends the difference between a value and the previous value of the column. In
// columns whose neighboring values are similar, differences need fewer bytes than values.
func (t *Track) addDifference(c column, v int64) {
	v = clamp(v)
	t.columns[c] = binary.AppendVarint(t.columns[c], v-t.previous[c])
	t.previous[c] = v
}

// maxValue is the largest integer up to which JavaScript represents all integers exactly.
const maxValue = 1<<53 - 1

// clamp returns the integer from 0 to maxValue that is closest to v.
func clamp(v int64) int64 { return min(max(v, 0), maxValue) }

// appendUint appends an integer, limited by clamp, in the encoding of binary.AppendUvarint.
func appendUint(b []byte, v int64) []byte { return binary.AppendUvarint(b, uint64(clamp(v))) }
