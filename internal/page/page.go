package page

// The ranks of a job should allocate and free the same memory, and make the same calls, in the same
// order. A web page shows what they did. Suppose that the ranks 4 and 5 of a job share a pool and a
// group:
//
//   - Page.Ranks has two entries. Rank 4 has the index 0, and rank 5 has the index 1. Unless stated
//     otherwise, fields identify a rank by this index.
//   - Page.Sequences has two entries, for the pool and for the group. Each has two Tracks, which
//     hold the events of each rank.
//   - If the third allocation of rank 5 is larger than that of rank 4, the pool's Sequence has a
//     Difference with two Variants.

// Page holds the contents of a web page. It is not safe for concurrent use.
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
	Frames    []string   `json:"frames"` // functions, to which call stacks refer by index

	stacks     []byte // encoded call stacks: for each, the number of frames and their indexes
	stackCount int
}

// Rank describes a rank and the source of its events, which is a file or a running process.
type Rank struct {
	Rank   int      `json:"rank"`   // number of the rank in the job
	File   string   `json:"file"`   // name of the source
	Format string   `json:"format"` // kind of the source, for people
	Events int      `json:"events"` // number of events
	Notes  []string `json:"notes"`  // what is special about the source
}

// Sequence describes the events of a pool or the calls of a group. Allocations, frees and calls are
// called requests. An allocation also has a place: its segment and its offset there.
type Sequence struct {
	Title string `json:"title"`
	Calls bool   `json:"calls"` // the sequence consists of the calls of a group
	// Equal is the number of requests before the first one that differs between ranks.
	Equal  int      `json:"equal"`
	Tracks []*Track `json:"tracks"` // the events of each rank
	// Differences describes the first request and the first place that differ between ranks.
	Differences []Difference `json:"differences"`
	Notes       []string     `json:"notes"`
}

// Difference describes the first event of which the request or the place differs between ranks.
type Difference struct {
	Subject  string    `json:"of"`      // what differs: "requests" or "places"
	Kind     string    `json:"kind"`    // such as "different size"
	Request  int       `json:"request"` // number of the request, as in Track.First
	Variants []Variant `json:"variants"`
	// Blamed lists the ranks that differ from the majority, by their numbers in the job.
	Blamed []int `json:"blamed"`
	// Before describes the latest requests before the difference.
	Before []string `json:"before"`
	// Explanation states whether the difference causes all later ones.
	Explanation []string `json:"explanation"`
}

// Variant describes what some of the ranks did at a Difference.
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

// State says whether a rank has registered a window.
type State int

// The states of a window on a rank.
const (
	Absent       State = iota // never registered
	Registered                // registered and not deregistered
	Deregistered              // registered earlier, and deregistered since
)

// Window describes a segment that was registered with a group. Ranks of the group can access a
// registered segment of another rank.
type Window struct {
	Group   string  `json:"group"`
	Pool    string  `json:"pool"`
	Segment int     `json:"segment"` // number of the segment in the pool
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

// Path counts the calls of one operation that symmem ran in one way, called the path.
type Path struct {
	Group     string  `json:"group"`
	Operation string  `json:"operation"`
	Path      string  `json:"path"`
	Calls     []int64 `json:"calls"` // number of calls, by rank
	Bytes     []int64 `json:"bytes"` // sum of their sizes, by rank
}

// AddStack adds a call stack, and returns its number for [Event.Stack]. frames holds indexes in
// Page.Frames, with the innermost function first.
func (p *Page) AddStack(frames []int32) int32 {
	p.stacks = appendUint(p.stacks, int64(len(frames)))
	for _, f := range frames {
		p.stacks = appendUint(p.stacks, int64(f))
	}

	p.stackCount++
	return int32(p.stackCount - 1)
}
