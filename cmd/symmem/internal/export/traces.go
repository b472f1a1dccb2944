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
	missingEvents uint64
}

type group struct {
	id    string
	ranks []int // members in ascending order
	// firstComplete is the number of the first event of the group that all traces contain.
	firstComplete uint64
	// hasMessages is set if the group has Sends or Recvs. If it is set, the number of a collective
	// can differ between ranks.
	hasMessages bool
}

// Open reads the traces in the given files and directories and measures the clocks of the ranks.
func Open(paths []string) (*Traces, error) {
	sources, err := load.Find(paths, nil)
	if err != nil {
		return nil, err
	}
	t := &Traces{groups: map[string]*group{}}
	sources = t.selectWorld(sources)
	var samples []clockSamples
	events := 0
	for _, s := range sources {
		l, err := readTrace(s.Path)
		if err != nil {
			return nil, err
		}
		r := rankTrace{s.Path, l.Host, l.Rank, l.Process, l.Start, l.Missing}
		index, isDuplicate := slices.BinarySearchFunc(t.ranks, r, func(a, b rankTrace) int {
			return cmp.Compare(a.rank, b.rank)
		})
		if isDuplicate {
			return nil, fmt.Errorf("%s and %s are both traces of rank %d: pass the traces "+
				"of a single world of a single run", t.ranks[index].path, s.Path, r.rank)
		}
		t.ranks = slices.Insert(t.ranks, index, r)
		samples = slices.Insert(samples, index, sampleClock(l))
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
// omitted trace. A process has several worlds if it opens symmem several times.
func (t *Traces) selectWorld(all []load.Source) []load.Source {
	lowest := all[0].World
	for _, s := range all {
		lowest = min(lowest, s.World)
	}
	return slices.DeleteFunc(slices.Clone(all), func(s load.Source) bool {
		if s.World != lowest {
			t.Notes = append(t.Notes, fmt.Sprintf("%s is left out: it belongs to another world of the "+
				"process; export the files of that world separately", s.Path))
		}
		return s.World != lowest
	})
}

// readTrace reads a trace and checks its rank.
func readTrace(path string) (*trace.Log, error) {
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

// addGroups adds the groups that occur in a trace, and the ranks that are known to belong to them.
func (t *Traces) addGroups(l *trace.Log) {
	isSeen := map[string]bool{}
	for i := range l.Records {
		r := &l.Records[i]
		switch {
		case r.Kind == event.KindRegister && r.Name != "":
			t.findOrAddGroup(r.Name).addRank(l.Rank)
		case r.Kind.IsGroupEvent() && r.Group != "":
			g := t.findOrAddGroup(r.Group)
			g.hasMessages = g.hasMessages || isMessage(r)
			if !isSeen[r.Group] {
				isSeen[r.Group] = true
				g.addRank(l.Rank)
				if l.Missing > 0 {
					g.firstComplete = max(g.firstComplete, r.Number)
				}
			}
		}
	}
	if world := t.groups[worldID]; world != nil {
		for rank := range l.Size {
			world.addRank(rank)
		}
	}
}

// findOrAddGroup returns the group with the given ID. It creates the group if necessary.
func (t *Traces) findOrAddGroup(id string) *group {
	g := t.groups[id]
	if g == nil {
		g = &group{id: id}
		t.groups[id] = g
	}
	return g
}

func (g *group) addRank(rank int) {
	if index, ok := slices.BinarySearch(g.ranks, rank); !ok {
		g.ranks = slices.Insert(g.ranks, index, rank)
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
		if r.missingEvents > 0 {
			t.Notes = append(t.Notes, fmt.Sprintf("rank %d: newer events have replaced %d events at the "+
				"beginning", r.rank, r.missingEvents))
		}
	}
	for _, c := range t.Clocks {
		if !c.IsReference {
			t.Notes = append(t.Notes, c.String())
		}
	}
}

// areComplete reports whether every trace still contains its first event.
func (t *Traces) areComplete() bool {
	return !slices.ContainsFunc(t.ranks, func(r rankTrace) bool { return r.missingEvents > 0 })
}

// correctedStart returns the start time of the trace with index i on the clock of the first rank.
func (t *Traces) correctedStart(i int) time.Time {
	return t.ranks[i].start.Add(-time.Duration(t.Clocks[i].AppliedOffset))
}

// frameOf converts a call site (file:line) to a frame. If text is empty, the frame is empty.
func frameOf(text, name string) frame {
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

// timeOf returns the time of a record. Records must be passed in order.
func (t *timeline) timeOf(r *trace.Record) time.Time {
	if !r.Time.IsZero() {
		t.now = r.Time
	}
	return t.now
}
