package page

// Page holds the contents of a page. Unless stated otherwise, its fields identify ranks by their
// index in Ranks. A Page is not safe for concurrent use.
type Page struct {
	Title string `json:"title"`
	// Live is set if the page shows a running job.
	Live bool `json:"live,omitempty"`
	// Agree is set if no ranks differ, and Compared if some ranks were compared.
	Agree     bool       `json:"agree"`
	Compared  bool       `json:"compared"`
	Verdict   string     `json:"verdict"` // most important result, in one sentence
	Ranks     []Rank     `json:"ranks"`
	Sequences []Sequence `json:"sequences"` // one for each pool and group
	Windows   []Window   `json:"windows"`
	Pending   []Row      `json:"pending"` // unfinished operations
	Faults    []Row      `json:"faults"`
	Paths     []Path     `json:"paths"`
	Notes     []string   `json:"notes"`  // notes about data that the page does not show
	Texts     []string   `json:"texts"`  // descriptions of calls
	Frames    []string   `json:"frames"` // functions in call stacks, see AddStack

	stacks     []byte // encoded call stacks
	stackCount int
}

// Rank describes the source of a rank's events: a file or a running process.
type Rank struct {
	Rank   int      `json:"rank"` // number of the rank
	File   string   `json:"file"` // name of the source
	Format string   `json:"format"`
	Events int      `json:"events"` // number of events
	Notes  []string `json:"notes"`
}

// Sequence describes the events of a pool or a group.
type Sequence struct {
	Title string `json:"title"`
	Calls bool   `json:"calls"` // the sequence is a group
	// Equal is the number of requests before the first one that differs.
	Equal  int      `json:"equal"`
	Tracks []*Track `json:"tracks"`
	// Differences describes the first request and the first place that differ between ranks.
	Differences []Difference `json:"differences"`
	Notes       []string     `json:"notes"`
}

// Difference describes the first event that differs between ranks.
type Difference struct {
	Subject  string    `json:"of"`   // "requests" or "places"
	Kind     string    `json:"kind"` // such as "different size"
	Request  int       `json:"request"`
	Variants []Variant `json:"variants"`
	// Blamed lists the numbers of the ranks that differ from the majority.
	Blamed []int `json:"blamed"`
	// Before describes the last requests before the difference. Explanation states whether it causes
	// all later ones.
	Before      []string `json:"before"`
	Explanation []string `json:"explanation"`
}

// Variant describes what a set of ranks did at the first difference.
type Variant struct {
	Ranks []int    `json:"ranks"` // rank numbers
	Text  string   `json:"text"`
	Kind  string   `json:"kind"`
	Stack []string `json:"stack"`
}

// Segment describes a segment of a track's pool.
type Segment struct {
	Bytes   int64 `json:"bytes"`
	Initial bool  `json:"old,omitempty"` // mapped before the track begins
}

// State is the state of a window on a rank.
type State int

// The states of windows. An absent window was never registered.
const (
	Absent State = iota
	Registered
	Deregistered
)

// Window describes a segment that is registered with a group. States has an element for each rank.
type Window struct {
	Group   string  `json:"group"`
	Pool    string  `json:"pool"`
	Segment int     `json:"segment"`
	Bytes   int64   `json:"bytes"`
	States  []State `json:"states"`
}

// Row describes a fault or an unfinished operation that some of the ranks reported.
type Row struct {
	Ranks []int  `json:"ranks"`
	Group string `json:"group"`
	Text  string `json:"text"`
	Time  int64  `json:"time"` // microseconds since 1970 (UTC); 0 if unknown
}

// Path counts the calls of an operation by path, the way in which symmem executed them. Calls and
// Bytes have an element for each rank.
type Path struct {
	Group     string  `json:"group"`
	Operation string  `json:"operation"`
	Path      string  `json:"path"`
	Calls     []int64 `json:"calls"`
	Bytes     []int64 `json:"bytes"`
}

// AddStack adds a call stack. frames contains indexes in Frames, the innermost first. AddStack
// returns the number of the stack, which is the value for [Event.Stack].
func (p *Page) AddStack(frames []int32) int32 {
	p.stacks = appendUint(p.stacks, int64(len(frames)))
	for _, f := range frames {
		p.stacks = appendUint(p.stacks, int64(f))
	}
	p.stackCount++
	return int32(p.stackCount - 1)
}
