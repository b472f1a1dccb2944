package page

// Ranks should allocate and free the same memory of a pool, and make the same calls of a group, in
// the same order. Suppose that only ranks 4 and 5 of a job use a pool. The pool's Sequence then has
// two Tracks of events, and also a Difference with two Variants if the third allocation of rank 5
// is larger. Fields identify these ranks by their indexes in Page.Ranks, 0 and 1, unless stated
// otherwise.

// Page holds the contents of a web page. It is not safe for concurrent use.
type Page struct {
	Title     string     `json:"title"`
	Live      bool       `json:"live,omitempty"` // the job is running
	Agree     bool       `json:"agree"`          // no ranks differ
	Compared  bool       `json:"compared"`       // there were at least two ranks
	Verdict   string     `json:"verdict"`        // main result
	Ranks     []Rank     `json:"ranks"`
	Sequences []Sequence `json:"sequences"` // one per pool and group
	Windows   []Window   `json:"windows"`
	Pending   []Row      `json:"pending"` // unfinished operations
	Faults    []Row      `json:"faults"`
	Paths     []Path     `json:"paths"`  // counts of calls
	Notes     []string   `json:"notes"`  // on omitted data
	Texts     []string   `json:"texts"`  // see Event.Block
	Frames    []string   `json:"frames"` // see AddStack

	stacks     []byte // encoded by AddStack
	stackCount int
}

// Rank describes a rank and the source of its events, a file or a running process.
type Rank struct {
	Rank   int      `json:"rank"`   // number in the job
	File   string   `json:"file"`   // name of the source
	Format string   `json:"format"` // kind of the source
	Events int      `json:"events"`
	Notes  []string `json:"notes"` // on the source
}

// Sequence holds the events of a pool or the calls of a group. Its requests are allocations, frees
// and calls. The place of an allocation is its segment and the offset there.
type Sequence struct {
	Title string `json:"title"`
	Calls bool   `json:"calls"` // calls of a group, not events of a pool
	// Equal is the number of requests before the first that differs between ranks.
	Equal  int      `json:"equal"`
	Tracks []*Track `json:"tracks"`
	// Differences describes the first request and the first place that differ.
	Differences []Difference `json:"differences"`
	Notes       []string     `json:"notes"`
}

// Difference describes the first request, or the first place, that differs between ranks.
type Difference struct {
	Subject  string    `json:"of"`      // "requests" or "places"
	Kind     string    `json:"kind"`    // such as "different size"
	Request  int       `json:"request"` // number as in Track.First
	Variants []Variant `json:"variants"`
	// Blamed lists the ranks outside the majority, by number in the job.
	Blamed      []int    `json:"blamed"`
	Before      []string `json:"before"`      // latest requests before the difference
	Explanation []string `json:"explanation"` // whether it causes all later ones
}

// Variant describes what some of the ranks did.
type Variant struct {
	Ranks []int    `json:"ranks"` // numbers in the job
	Text  string   `json:"text"`  // description
	Kind  string   `json:"kind"`  // of difference from the first Variant
	Stack []string `json:"stack"` // innermost function first
}

// Segment is a range of memory in which a pool places blocks.
type Segment struct {
	Bytes   int64 `json:"bytes"`
	Initial bool  `json:"old,omitempty"` // mapped before the track begins
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
	States  []State `json:"states"` // by rank
}

// Row describes a fault or an unfinished operation that some ranks have reported.
type Row struct {
	Ranks []int  `json:"ranks"`
	Group string `json:"group"`
	Text  string `json:"text"`
	Time  int64  `json:"time"` // microseconds since 1970 (UTC); 0 if unknown
}

// Path counts the calls of one operation that symmem ran in one way, for example "window".
type Path struct {
	Group     string  `json:"group"`
	Operation string  `json:"operation"`
	Path      string  `json:"path"`
	Calls     []int64 `json:"calls"` // by rank
	Bytes     []int64 `json:"bytes"` // by rank
}

// AddStack adds a call stack and returns its number for [Event.Stack]. frames holds indexes in
// Page.Frames, innermost first. Each stack is encoded as its length and its frames.
func (p *Page) AddStack(frames []int32) int32 {
	p.stacks = appendUint(p.stacks, int64(len(frames)))
	for _, f := range frames {
		p.stacks = appendUint(p.stacks, int64(f))
	}

	p.stackCount++
	return int32(p.stackCount - 1)
}
