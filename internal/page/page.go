package page

import "encoding/binary"

// Page holds the contents of a web page about a job. It is not safe for concurrent use.
//
// Ranks are the processes of the job. Ranks with a memory pool should allocate and free the same
// memory in the same order, and the ranks of a group should make the same calls.
type Page struct {
	Title     string     `json:"title"`
	Live      bool       `json:"live,omitempty"` // the job is running
	Agree     bool       `json:"agree"`          // no difference was found
	Compared  bool       `json:"compared"`       // there are at least two ranks
	Verdict   string     `json:"verdict"`        // main result
	Ranks     []Rank     `json:"ranks"`
	Sequences []Sequence `json:"sequences"` // one per pool and group
	Windows   []Window   `json:"windows"`
	Pending   []Row      `json:"pending"` // unfinished operations
	Faults    []Row      `json:"faults"`
	Paths     []Path     `json:"paths"`
	Notes     []string   `json:"notes"`  // about omitted data
	Texts     []string   `json:"texts"`  // descriptions of calls
	Frames    []string   `json:"frames"` // functions in call stacks

	stacks     []byte // encoded by AddStack
	stackCount int
}

// AddStack adds a call stack and returns its number for [Event.Stack]. frames holds indexes in
// Page.Frames, innermost first.
func (p *Page) AddStack(frames []int32) int32 {
	p.stacks = appendUint(p.stacks, int64(len(frames)))
	for _, f := range frames {
		p.stacks = appendUint(p.stacks, int64(f))
	}

	p.stackCount++
	return int32(p.stackCount - 1)
}

// Rank describes a rank and the source of its events, a file or a running process.
type Rank struct {
	Rank   int      `json:"rank"`   // number in the job
	File   string   `json:"file"`   // name of the source
	Format string   `json:"format"` // such as "trace of symmem"
	Events int      `json:"events"`
	Notes  []string `json:"notes"` // about the source
}

// Sequence holds the events of a pool or the calls of a group. Allocations, frees and calls are its
// requests, which should be the same on all ranks.
type Sequence struct {
	Title string `json:"title"`
	Calls bool   `json:"calls"` // calls of a group, not events of a pool
	// Equal is the number of requests before the first that differs between ranks.
	Equal  int      `json:"equal"`
	Tracks []*Track `json:"tracks"`
	// Differences has the first request that differs between ranks, and the first allocation with a
	// different segment or offset.
	Differences []Difference `json:"differences"`
	Notes       []string     `json:"notes"`
}

// Difference describes a request, or the place of an allocation, that differs between ranks.
type Difference struct {
	Subject  string    `json:"of"`      // "requests" or "places"
	Kind     string    `json:"kind"`    // such as "different size"
	Request  int       `json:"request"` // number as in Track.First
	Variants []Variant `json:"variants"`
	// Blamed lists the ranks outside the majority, by number in the job.
	Blamed      []int    `json:"blamed"`
	Before      []string `json:"before"`      // descriptions of the preceding requests
	Explanation []string `json:"explanation"` // cause, or effect on later requests
}

// Variant describes what some of the ranks did.
type Variant struct {
	Ranks []int    `json:"ranks"` // numbers in the job
	Text  string   `json:"text"`  // description
	Kind  string   `json:"kind"`  // how it differs from the first Variant
	Stack []string `json:"stack"` // innermost function first
}

// Segment is a range of memory in which a pool places blocks.
type Segment struct {
	Bytes   int64 `json:"bytes"`
	Initial bool  `json:"old,omitempty"` // mapped before the track began
}

// State is the state of a window on a rank.
type State int

// The states of a window.
const (
	Absent State = iota // never registered
	Registered
	Deregistered
)

// Window is a segment that ranks have registered with a group, for access by the other ranks.
type Window struct {
	Group   string  `json:"group"`
	Pool    string  `json:"pool"`
	Segment int     `json:"segment"` // number in the pool
	Bytes   int64   `json:"bytes"`
	States  []State `json:"states"` // by index in Page.Ranks
}

// Row describes a fault or an unfinished operation.
type Row struct {
	Ranks []int  `json:"ranks"` // indexes in Page.Ranks
	Group string `json:"group"`
	Text  string `json:"text"`
	Time  int64  `json:"time"` // microseconds since 1970 (UTC); 0 if unknown
}

// Path counts the calls of an operation by the way in which symmem ran them, such as "window".
type Path struct {
	Group     string  `json:"group"`
	Operation string  `json:"operation"`
	Path      string  `json:"path"`
	Calls     []int64 `json:"calls"` // by index in Page.Ranks
	Bytes     []int64 `json:"bytes"` // by index in Page.Ranks
}

// Kind classifies an event.
type Kind uint8

// The kinds of events. The encoding contains these numbers.
const (
	Alloc    Kind = iota + 1
	Free          // the memory may still be in use
	FreeDone      // the memory of an earlier Free is reusable
	SegmentAdd
	SegmentRemove
	Call  // of a collective
	Older // an allocation from before the track
)

// Event is an event of a track.
type Event struct {
	Kind    Kind
	Size    int64 // requested size, or size of a segment
	Bytes   int64 // size of a block or of a call's data; 0 if unknown
	Offset  int64 // in the segment, in bytes
	Segment int32 // index in Track.Segments; -1 if unknown
	Stream  int32 // number of the stream
	// For a Call, Block is an index in Page.Texts. For other kinds, it is the number (from 0) of the
	// block's Alloc in the track, or -1 if there is none.
	Block  int32
	Stack  int32 // result of Page.AddStack; -1 if unknown
	Number int64 // of the event in the rank's file
	Time   int64 // UTC in microseconds since 1970; 0 if unknown
}

// Track holds the events of a pool or group on one rank, encoded in columns. The package comment
// describes the encoding.
type Track struct {
	Rank int // index in Page.Ranks
	// First is the number of the track's first request. Request 0 is the first that all tracks
	// contain, so First can be negative.
	First    int
	Segments []Segment

	count    int
	columns  [columnCount][]byte
	previous [columnCount]int64 // last values encoded by addDifference
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

// columnNames holds the names in the page's script.
var columnNames = [columnCount]string{
	"kind", "size", "bytes", "offset", "segment", "stream", "block", "stack", "number", "time",
}

// Len returns the number of events.
func (t *Track) Len() int { return t.count }

// Add appends an event. Encoded fields cannot be negative, so it adds 1 to fields that can be -1.
func (t *Track) Add(e *Event) {
	block := int64(e.Block)
	if e.Kind != Call {
		block++ // can be -1
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

// maxValue is the largest integer that JavaScript represents exactly.
const maxValue = 1<<53 - 1

// clamp limits v to the range from 0 to maxValue.
func clamp(v int64) int64 { return min(max(v, 0), maxValue) }

// appendUint appends clamp(v) as a varint.
func appendUint(b []byte, v int64) []byte { return binary.AppendUvarint(b, uint64(clamp(v))) }
