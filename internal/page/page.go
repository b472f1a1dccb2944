package page

// Page holds the contents of a web page that shows what the ranks of a job did. Unless stated
// otherwise, fields of this package identify a rank by its index in Page.Ranks. A Page is not safe
// for concurrent use.
type Page struct {
	Title     string     `json:"title"`
	Live      bool       `json:"live,omitempty"` // the page shows a running job
	Agree     bool       `json:"agree"`          // no difference between ranks was found
	Compared  bool       `json:"compared"`       // at least two ranks were compared
	Verdict   string     `json:"verdict"`        // most important result, in one sentence
	Ranks     []Rank     `json:"ranks"`
	Sequences []Sequence `json:"sequences"` // one for each pool and group
	Windows   []Window   `json:"windows"`
	Pending   []Row      `json:"pending"` // unfinished operations
	Faults    []Row      `json:"faults"`
	Paths     []Path     `json:"paths"`  // counts of calls
	Notes     []string   `json:"notes"`  // notes about data that the page does not show
	Texts     []string   `json:"texts"`  // descriptions of calls, to which events refer by index
	Frames    []string   `json:"frames"` // functions in call stacks; see AddStack

	stacks     []byte // encoded call stacks: for each, the number of frames and their indexes
	stackCount int
}

// Rank describes the source of a rank's events: a file or a running process.
type Rank struct {
	Rank   int      `json:"rank"`   // number of the rank in the job
	File   string   `json:"file"`   // name of the source
	Format string   `json:"format"` // kind of the source, for people
	Events int      `json:"events"` // number of events
	Notes  []string `json:"notes"`  // what is special about the source
}

// Sequence describes the events of a pool or the calls of a group. All ranks must make the same
// requests (allocations, frees and calls) in the same order.
type Sequence struct {
	Title string `json:"title"`
	Calls bool   `json:"calls"` // the sequence consists of the calls of a group
	// Equal is the number of requests before the first one that differs.
	Equal  int      `json:"equal"`
	Tracks []*Track `json:"tracks"` // the events of each rank
	// Differences describes the first request and the first place that differ between ranks.
	Differences []Difference `json:"differences"`
	Notes       []string     `json:"notes"`
}

// Difference describes the first event that differs between ranks.
type Difference struct {
	Subject  string    `json:"of"`      // "requests" or "places"
	Kind     string    `json:"kind"`    // such as "different size"
	Request  int       `json:"request"` // number of the request, as in Track.First
	Variants []Variant `json:"variants"`
	// Blamed lists the ranks that differ from the majority, by their numbers in the job.
	Blamed []int `json:"blamed"`
	// Before describes the last requests before the difference.
	Before []string `json:"before"`
	// Explanation states whether the difference causes all later ones.
	Explanation []string `json:"explanation"`
}

// Variant describes what a set of ranks did at the first difference.
type Variant struct {
	Ranks []int    `json:"ranks"` // numbers of the ranks in the job
	Text  string   `json:"text"`  // description of the event
	Kind  string   `json:"kind"`  // kind of the event
	Stack []string `json:"stack"` // call stack, innermost function first
}

// Segment describes a segment, a range of memory in which the pool of a track places blocks.
type Segment struct {
	Bytes   int64 `json:"bytes"`
	Initial bool  `json:"old,omitempty"` // mapped before the track begins
}

// State is the state of a window on a rank.
type State int

// The states of windows.
const (
	Absent       State = iota // never registered
	Registered                // registered and not deregistered
	Deregistered              // registered earlier
)

// Window describes a segment that is registered with a group, so that ranks can access it remotely.
type Window struct {
	Group   string  `json:"group"`
	Pool    string  `json:"pool"`
	Segment int     `json:"segment"` // number of the segment in the pool
	Bytes   int64   `json:"bytes"`
	States  []State `json:"states"` // by rank
}

// Row describes a fault or an unfinished operation that some of the ranks reported.
type Row struct {
	Ranks []int  `json:"ranks"`
	Group string `json:"group"`
	Text  string `json:"text"`
	Time  int64  `json:"time"` // microseconds since 1970 (UTC); 0 if unknown
}

// Path counts the calls of one operation that took one path, which is the way in which symmem
// executed them.
type Path struct {
	Group     string  `json:"group"`
	Operation string  `json:"operation"`
	Path      string  `json:"path"`
	Calls     []int64 `json:"calls"` // number of calls, by rank
	Bytes     []int64 `json:"bytes"` // sum of their sizes, by rank
}

// AddStack adds a call stack. frames contains indexes in Page.Frames, with the innermost function
// first. AddStack returns the number of the stack, which is the value for [Event.Stack].
func (p *Page) AddStack(frames []int32) int32 {
	p.stacks = appendUint(p.stacks, int64(len(frames)))
	for _, f := range frames {
		p.stacks = appendUint(p.stacks, int64(f))
	}

	p.stackCount++
	return int32(p.stackCount - 1)
}
