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

// Traces describes the traces of one run. Only one trace at a time is held in memory.
type Traces struct {
	Clocks []Clock  // ordered by rank
	Notes  []string // what is missing from the exported files, and how clocks differ

	ranks  []rankTrace // ordered by rank
	groups map[string]*group
}

// rankTrace describes the trace of a rank. It does not hold the events.
type rankTrace struct {
	path, host    string
	rank, process int // number of the rank, and ID of its process
	size          int // number of ranks in the world
	start         time.Time
	missingEvents uint64 // number of events at the beginning that newer events have replaced
}

type group struct {
	id    string
	ranks []int // members in ascending order
	// firstComplete is the number of the first event of the group that all traces contain.
	firstComplete uint64
	// hasMessages is set if the group has Sends or Recvs. The number of a collective can then
	// differ between ranks.
	hasMessages bool
}

// Open reads the traces in the given files and directories, and measures how the clocks of the
// ranks differ. The traces must be of different ranks of one run.
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
		r := rankTrace{s.Path, l.Host, l.Rank, l.Process, l.Size, l.Start, l.Missing}
		if len(t.ranks) > 0 && t.ranks[0].size != l.Size {
			return nil, fmt.Errorf("%s is of a world of %d ranks, and %s of one of %d: pass the traces "+
				"of a single world of a single run", t.ranks[0].path, t.ranks[0].size, s.Path, l.Size)
		}
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

// selectWorld returns the traces of the world with the lowest number, and adds a note for each
// other trace. A process has several worlds if it opens symmem several times.
func (t *Traces) selectWorld(all []load.Source) []load.Source {
	lowest := all[0].World
	for _, s := range all {
		lowest = min(lowest, s.World)
	}
	return slices.DeleteFunc(slices.Clone(all), func(s load.Source) bool {
		if s.World != lowest {
			t.Notes = append(t.Notes, fmt.Sprintf("%s is left out, because it belongs to another world "+
				"of the process: export the files of that world separately", s.Path))
		}
		return s.World != lowest
	})
}

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

// addGroups adds the groups that occur in a trace to t.groups. The rank of the trace belongs to
// all of them.
func (t *Traces) addGroups(l *trace.Log) {
	isSeen := map[string]bool{} // whether an event of the group has been seen, by ID
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

// addNotes adds notes about missing traces, missing events and differing clocks.
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

// areComplete reports whether all traces contain all events from the first.
func (t *Traces) areComplete() bool {
	return !slices.ContainsFunc(t.ranks, func(r rankTrace) bool { return r.missingEvents > 0 })
}

// correctedStart returns the start time of trace i on the clock of the first rank.
func (t *Traces) correctedStart(i int) time.Time {
	return t.ranks[i].start.Add(-time.Duration(t.Clocks[i].AppliedOffset))
}

// frameOf returns a frame with a name for a call site, which has the form file:line. For an empty
// call site, it returns the zero frame.
func frameOf(callSite, name string) frame {
	if callSite == "" {
		return frame{}
	}
	f := frame{name: name, file: callSite}
	if i := strings.LastIndexByte(callSite, ':'); i >= 0 {
		if n, err := strconv.ParseInt(callSite[i+1:], 10, 64); err == nil {
			f.file, f.line = callSite[:i], n
		}
	}
	return f
}

// timeline assigns times to the records of a trace. A record without a time gets the time of the
// preceding record. now is the time of the last record, and at first the start time of the trace.
type timeline struct{ now time.Time }

// timeOf returns the time of a record, and sets now. It must be called for all records in order.
func (t *timeline) timeOf(r *trace.Record) time.Time {
	if !r.Time.IsZero() {
		t.now = r.Time
	}
	return t.now
}
