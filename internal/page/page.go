package page

// Page holds the contents of a page. Its fields refer to a rank by its index in Ranks. A Page is
// not safe for concurrent use.
type Page struct {
	Title string `json:"title"`
	// Live is set if the page shows a running job, so that it fetches its data repeatedly.
	Live bool `json:"live,omitempty"`
	// Agree is set if no difference was found, and Compared if ranks were compared at all.
	Agree    bool `json:"agree"`
	Compared bool `json:"compared"`
	// Verdict is a one-sentence summary of the result.
	Verdict   string     `json:"verdict"`
	Ranks     []Rank     `json:"ranks"`
	Sequences []Sequence `json:"sequences"`
	// Windows lists the registrations of segments with groups.
	Windows []Window `json:"windows"`
	Pending []Row    `json:"pending"`
	Faults  []Row    `json:"faults"`
	// Paths counts calls by group, operation and path.
	Paths []Path `json:"paths"`
	// Notes describes what the page does not show.
	Notes []string `json:"notes"`
	// Texts and Frames contain the texts of calls and the stack frames to which events refer.
	Texts  []string `json:"texts"`
	Frames []string `json:"frames"`

	stacks     []byte
	stackCount int
}

// Rank describes a rank, or one of its files if it has several.
type Rank struct {
	Rank   int      `json:"rank"`
	File   string   `json:"file"`
	Format string   `json:"format"`
	Events int      `json:"events"`
	Notes  []string `json:"notes"`
}

// Sequence describes a pool or a group.
type Sequence struct {
	Title string `json:"title"`
	// Calls is set if the events are calls of a group, rather than events of a pool.
	Calls bool `json:"calls"`
	// Equal is the number of requests at the beginning that are the same on all ranks.
	Equal  int      `json:"equal"`
	Tracks []*Track `json:"tracks"`
	// Differences lists the first request and the first place that differ.
	Differences []Difference `json:"differences"`
	Notes       []string     `json:"notes"`
}

// Difference describes the first event that differs.
type Difference struct {
	// Subject is "requests" or "places". Kind names the difference, such as "other size".
	Subject string `json:"of"`
	Kind    string `json:"kind"`
	// Request is the number of the request.
	Request  int       `json:"request"`
	Variants []Variant `json:"variants"`
	// Blamed lists the numbers of the ranks in the minority, if there is one.
	Blamed []int `json:"blamed"`
	// Before lists the requests that precede the difference. Explanation states whether this
	// difference explains the rest.
	Before      []string `json:"before"`
	Explanation []string `json:"explanation"`
}

// Variant describes the event of some of the ranks at the point where they differ.
type Variant struct {
	// Ranks lists rank numbers.
	Ranks []int    `json:"ranks"`
	Text  string   `json:"text"`
	Kind  string   `json:"kind"`
	Stack []string `json:"stack"`
}

// Segment describes a segment of a track.
type Segment struct {
	Bytes int64 `json:"bytes"`
	// Old is set if the segment is older than the track.
	Old bool `json:"old,omitempty"`
}

// State is the state of a window on a rank.
type State int

// The states of a window: never registered, registered, and no longer registered.
const (
	Absent State = iota
	Registered
	Deregistered
)

// Window describes the registration of a segment with a group. States has one element for each
// rank.
type Window struct {
	Group   string  `json:"group"`
	Pool    string  `json:"pool"`
	Segment int     `json:"segment"`
	Bytes   int64   `json:"bytes"`
	States  []State `json:"states"`
}

// Row describes a fault or a pending operation of some ranks.
type Row struct {
	Ranks []int  `json:"ranks"`
	Group string `json:"group"`
	Text  string `json:"text"`
	// Time is UTC in microseconds since 1970, or 0 if unknown.
	Time int64 `json:"time"`
}

// Path counts the calls of an operation that took a path. Calls and Bytes have one element for each
// rank.
type Path struct {
	Group     string  `json:"group"`
	Operation string  `json:"operation"`
	Path      string  `json:"path"`
	Calls     []int64 `json:"calls"`
	Bytes     []int64 `json:"bytes"`
}

// AddStack adds a stack of frames, innermost first. It returns the index for [Event.Stack].
func (p *Page) AddStack(frames []int32) int32 {
	p.stacks = appendUint(p.stacks, int64(len(frames)))
	for _, f := range frames {
		p.stacks = appendUint(p.stacks, int64(f))
	}
	p.stackCount++
	return int32(p.stackCount - 1)
}
