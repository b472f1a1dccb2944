package page

import "encoding/binary"

// A track can have a million events, so it stores the values of each field in a column of varints.
// Columns in which successive values are close store differences instead, which need fewer bytes.
// For example, the event numbers 70, 71, 73 become 70, 1, 2.

// Kind classifies an event.
type Kind uint8

// The kinds of events. The encoding contains these numbers.
const (
	Alloc    Kind = iota + 1
	Free          // the memory may still be in use
	FreeDone      // the memory of an earlier Free became reusable
	SegmentAdd
	SegmentRemove
	Call  // of a collective
	Older // block from before the track begins
)

// Event is an event of a track.
type Event struct {
	Kind    Kind
	Size    int64 // requested bytes, or the size of a segment
	Bytes   int64 // occupied by a block or transferred by a call; 0 if unknown
	Offset  int64 // in the segment, in bytes
	Segment int32 // index in Track.Segments; -1 if unknown
	Stream  int32 // number of the stream
	// Block is the ordinal of the block's Alloc among those of the track, or -1 if unknown. For a
	// Call, it is the index of the call's text in Page.Texts.
	Block  int32
	Stack  int32 // result of Page.AddStack; -1 if unknown
	Number int64 // of the event in the rank's file
	Time   int64 // UTC in microseconds since 1970; 0 if unknown
}

// Track holds the events of a pool or group on one rank.
type Track struct {
	Rank int // index in Page.Ranks
	// First is the number of the first request, an Alloc, Free or Call. The first request that all
	// tracks contain has the number 0, so earlier ones are negative.
	First    int
	Segments []Segment

	count    int
	columns  [columnCount][]byte
	previous [columnCount]int64 // values, in columns of differences
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
	columnCount
)

// columnNames holds the names for the page's script.
var columnNames = [columnCount]string{
	"kind", "size", "bytes", "offset", "segment", "stream", "block", "stack", "number", "time",
}

// Len returns the number of events.
func (t *Track) Len() int { return t.count }

// Add appends an event. Fields in which -1 means unknown are stored plus 1, because columns hold no
// negative values.
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

func (t *Track) addValue(c column, v int64) { t.columns[c] = appendUint(t.columns[c], v) }

func (t *Track) addDifference(c column, v int64) {
	v = clamp(v)
	t.columns[c] = binary.AppendVarint(t.columns[c], v-t.previous[c])
	t.previous[c] = v
}

// maxValue is Number.MAX_SAFE_INTEGER of JavaScript.
const maxValue = 1<<53 - 1

// clamp limits v to the range from 0 to maxValue.
func clamp(v int64) int64 { return min(max(v, 0), maxValue) }

// appendUint appends clamp(v) as a varint.
func appendUint(b []byte, v int64) []byte { return binary.AppendUvarint(b, uint64(clamp(v))) }
