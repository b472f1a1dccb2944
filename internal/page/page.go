package page

// Page holds the contents of a report page. Its fields refer to ranks by their index in Ranks,
// unless stated otherwise. A Page is not safe for concurrent use.
type Page struct {
	Title string `json:"title"`
	// Live is set if the page shows a running job. Such a page fetches its data repeatedly.
	Live bool `json:"live,omitempty"`
	// Agree is set if no difference was found. Compared is set if any ranks were compared.
	Agree    bool `json:"agree"`
	Compared bool `json:"compared"`
	// Verdict is a one-sentence summary of the result.
	Verdict   string     `json:"verdict"`
	Ranks     []Rank     `json:"ranks"`
	Sequences []Sequence `json:"sequences"`
	// Windows lists which segments are registered with which groups.
	Windows []Window `json:"windows"`
	Pending []Row    `json:"pending"`
	Faults  []Row    `json:"faults"`
	// Paths counts calls by group, operation and path.
	Paths []Path `json:"paths"`
	// Notes lists what the page does not show.
	Notes []string `json:"notes"`
	// Events refer to the descriptions of calls in Texts and to the stack frames in Frames.
	Texts  []string `json:"texts"`
	Frames []string `json:"frames"`

	stacks     []byte
	stackCount int
}

// Rank describes a rank or, if the rank has several files, one of them.
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
	// Calls is set if the events are the calls of a group rather than the events of a pool.
	Calls bool `json:"calls"`
	// Equal is the number of requests before the first one that differs between ranks.
	Equal  int      `json:"equal"`
	Tracks []*Track `json:"tracks"`
	// Differences describes the first request that differs between ranks, and the first placement
	// that differs between them, if any.
	Differences []Difference `json:"differences"`
	Notes       []string     `json:"notes"`
}

// Difference describes the first event that differs between ranks.
type Difference struct {
	// Subject is "requests" or "places". Kind names the difference, such as "other size".
	Subject string `json:"of"`
	Kind    string `json:"kind"`
	// Request is the number of the request.
	Request  int       `json:"request"`
	Variants []Variant `json:"variants"`
	// Blamed lists the numbers of the ranks that deviate from the majority. It is empty if there is
	// no majority.
	Blamed []int `json:"blamed"`
	// Before describes the last requests before the difference. Explanation states whether this
	// difference explains all later ones.
	Before      []string `json:"before"`
	Explanation []string `json:"explanation"`
}

// Variant describes what a set of ranks did at the first difference.
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
	// Initial is set if the segment was mapped before the track begins.
	Initial bool `json:"old,omitempty"`
}

// State is the state of a window on a rank.
type State int

const (
	// Absent is the state of a window that was never registered on the rank.
	Absent State = iota
	// Registered is the state of a window that is registered.
	Registered
	// Deregistered is the state of a window that is no longer registered.
	Deregistered
)

// Window describes the registration of a segment with a group. States holds the window's state
// on each rank.
type Window struct {
	Group   string  `json:"group"`
	Pool    string  `json:"pool"`
	Segment int     `json:"segment"`
	Bytes   int64   `json:"bytes"`
	States  []State `json:"states"`
}

// Row describes a fault or a pending operation that some of the ranks reported.
type Row struct {
	Ranks []int  `json:"ranks"`
	Group string `json:"group"`
	Text  string `json:"text"`
	// Time is in microseconds since 1970 (UTC), or 0 if it is unknown.
	Time int64 `json:"time"`
}

// Path counts the calls of an operation that took a given path. Calls and Bytes have one element
// for each rank.
type Path struct {
	Group     string  `json:"group"`
	Operation string  `json:"operation"`
	Path      string  `json:"path"`
	Calls     []int64 `json:"calls"`
	Bytes     []int64 `json:"bytes"`
}

// AddStack adds a call stack, given as indexes in Frames with the innermost frame first. It
// returns the stack's index, to be used as [Event.Stack].
func (p *Page) AddStack(frames []int32) int32 {
	p.stacks = appendUint(p.stacks, int64(len(frames)))
	for _, f := range frames {
		p.stacks = appendUint(p.stacks, int64(f))
	}
	p.stackCount++
	return int32(p.stackCount - 1)
}
