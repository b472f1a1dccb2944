package export

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"symmem/cmd/symmem/internal/diff/load"
	"symmem/event"
	"symmem/trace"
)

// Traces lists the traces of one run. Only one trace at a time is held in memory.
type Traces struct {
	// Clocks lists the clocks of the ranks, ordered by rank.
	Clocks []Clock
	// Notes describes what is missing from the exported files.
	Notes []string

	ranks  []rankTrace
	groups map[string]*group
}

// rankTrace describes a rank's trace without its events.
type rankTrace struct {
	path, host    string
	rank, process int
	start         time.Time
	missing       uint64
}

// group describes a group.
type group struct {
	id    string
	ranks []int // members in ascending order
	// first is the event number from which on all traces contain all events of the group.
	first uint64
	// messages is set if the group has Sends or Recvs. In such a group, the number of a collective
	// may differ between ranks.
	messages bool
}

// Open reads the traces in the given files and directories and measures the clocks of the ranks.
func Open(paths []string) (*Traces, error) {
	sources, err := load.Find(paths, nil)
	if err != nil {
		return nil, err
	}
	t := &Traces{groups: map[string]*group{}}
	sources = t.selectWorld(sources)
	var samples []samples
	events := 0
	for _, s := range sources {
		l, err := read(s.Path)
		if err != nil {
			return nil, err
		}
		r := rankTrace{s.Path, l.Host, l.Rank, l.Process, l.Start, l.Missing}
		at, duplicate := slices.BinarySearchFunc(t.ranks, r, func(a, b rankTrace) int {
			return cmp.Compare(a.rank, b.rank)
		})
		if duplicate {
			return nil, fmt.Errorf("%s and %s are both traces of rank %d: pass the traces "+
				"of a single world of a single run", t.ranks[at].path, s.Path, r.rank)
		}
		t.ranks = slices.Insert(t.ranks, at, r)
		samples = slices.Insert(samples, at, sampleClock(l))
		t.addGroups(l)
		events += len(l.Records)
	}
	if events == 0 {
		return nil, fmt.Errorf("%s: the traces have no events", strings.Join(paths, ", "))
	}
	t.Clocks = measureClocks(t.ranks, samples)
	t.addNotes()
	return t, nil
}

// selectWorld returns the traces of the world with the lowest number, and adds a note about each
// omitted trace. (A process has several worlds if it opens symmem several times.)
func (t *Traces) selectWorld(all []load.Source) []load.Source {
	first := all[0].World
	for _, s := range all {
		first = min(first, s.World)
	}
	return slices.DeleteFunc(slices.Clone(all), func(s load.Source) bool {
		if s.World != first {
			t.Notes = append(t.Notes, fmt.Sprintf("%s is left out: it belongs to another world of the "+
				"process; export the files of that world separately", s.Path))
		}
		return s.World != first
	})
}

// read reads a trace. It rejects all other files.
func read(path string) (*trace.Log, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading a trace: %w", err)
	}
	defer f.Close()
	l, err := trace.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s is not a trace that symmem export reads: %w", path, err)
	}
	if l.Rank >= l.Size || l.Size > maxRanks {
		return nil, fmt.Errorf("%s is damaged: its rank is %d, and its world has %d ranks",
			path, l.Rank, l.Size)
	}
	return l, nil
}

// maxRanks limits the size of a world in a trace, so that a damaged file cannot exhaust memory.
const maxRanks = 1 << 20

// addGroups adds the groups that occur in a trace, and their known members.
func (t *Traces) addGroups(l *trace.Log) {
	seen := map[string]bool{}
	for i := range l.Records {
		r := &l.Records[i]
		switch {
		case r.Kind == event.KindRegister && r.Name != "":
			t.group(r.Name).add(l.Rank)
		case r.Kind.IsGroupEvent() && r.Group != "":
			g := t.group(r.Group)
			g.messages = g.messages || isMessage(r)
			if !seen[r.Group] {
				seen[r.Group] = true
				g.add(l.Rank)
				if l.Missing > 0 {
					g.first = max(g.first, r.Number)
				}
			}
		}
	}
	if world := t.groups[worldID]; world != nil {
		for rank := range l.Size {
			world.add(rank)
		}
	}
}

// group returns the group with the given ID. It creates the group if necessary.
func (t *Traces) group(id string) *group {
	g := t.groups[id]
	if g == nil {
		g = &group{id: id}
		t.groups[id] = g
	}
	return g
}

func (g *group) add(rank int) {
	if at, found := slices.BinarySearch(g.ranks, rank); !found {
		g.ranks = slices.Insert(g.ranks, at, rank)
	}
}

// worldID is the ID of the group that all ranks belong to.
const worldID = "world"

func isMessage(r *trace.Record) bool {
	return r.Kind == event.KindCollective &&
		(strings.HasPrefix(r.Call, "Send ") || strings.HasPrefix(r.Call, "Recv "))
}

func (t *Traces) addNotes() {
	if world := t.groups[worldID]; world != nil && len(world.ranks) > len(t.ranks) {
		t.Notes = append(t.Notes, fmt.Sprintf("traces were found for only %d of the %d ranks in "+
			"the world", len(t.ranks), len(world.ranks)))
	}
	for _, r := range t.ranks {
		if r.missing > 0 {
			t.Notes = append(t.Notes, fmt.Sprintf("rank %d: newer events have replaced %d events at the "+
				"beginning", r.rank, r.missing))
		}
	}
	for _, c := range t.Clocks {
		if !c.Reference {
			t.Notes = append(t.Notes, c.String())
		}
	}
}

// complete reports whether every trace still contains its first event.
func (t *Traces) complete() bool {
	return !slices.ContainsFunc(t.ranks, func(r rankTrace) bool { return r.missing > 0 })
}

// start returns the time at which trace i started, according to the clock of the first rank.
func (t *Traces) start(i int) time.Time {
	return t.ranks[i].start.Add(-time.Duration(t.Clocks[i].Offset))
}

// site converts a call site (file:line) to a frame. If text is empty, the frame is empty.
func site(text, name string) frame {
	if text == "" {
		return frame{}
	}
	f := frame{name: name, file: text}
	if i := strings.LastIndexByte(text, ':'); i >= 0 {
		if n, err := strconv.ParseInt(text[i+1:], 10, 64); err == nil {
			f.file, f.line = text[:i], n
		}
	}
	return f
}

// timeline assigns times to the records of a trace. A record without a time gets the time of the
// preceding record. If there is no preceding record, it gets the start time of the trace.
type timeline struct{ now time.Time }

// at returns the time of the next record.
func (t *timeline) at(r *trace.Record) time.Time {
	if !r.Time.IsZero() {
		t.now = r.Time
	}
	return t.now
}
