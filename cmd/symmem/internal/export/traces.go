package export

import (
	"cmp"
	"fmt"
	"maps"
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
	path          string
	host          string // name of the machine
	rank          int    // number of the rank
	process       int    // ID of the rank's process
	size          int    // number of ranks in the world
	start         time.Time
	missingEvents uint64 // number of events at the beginning that newer events have replaced
}

// group is a set of ranks that make collective calls together.
type group struct {
	id    string
	ranks []int // members in ascending order
	// firstComplete is the number of the first event of the group that all traces contain. It is 0
	// if no trace has lost events.
	firstComplete uint64
	// hasMessages is set if the group has Sends or Recvs. These have numbers too, so the number of
	// a collective can differ between ranks.
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
	var countSamples, eventSamples []clockSamples // in the order of t.ranks
	eventCount := 0
	for _, s := range sources {
		log, err := readTrace(s.Path)
		if err != nil {
			return nil, err
		}

		index, err := t.addRank(s.Path, log)
		if err != nil {
			return nil, err
		}

		countSamples = slices.Insert(countSamples, index, sampleClock(log, byCount))
		eventSamples = slices.Insert(eventSamples, index, sampleClock(log, byEvent))
		t.addGroups(log)
		eventCount += len(log.Records)
	}

	if eventCount == 0 {
		return nil, fmt.Errorf("%s: the traces have no events", strings.Join(paths, ", "))
	}

	samples := countSamples
	if !t.areComplete() {
		samples = eventSamples
		t.removeUnnumbered(samples)
	}

	t.Clocks = measureClocks(t.ranks, samples)
	t.addNotes()
	return t, nil
}

// removeUnnumbered removes the samples of groups with Sends or Recvs. There, the number of a call
// can differ between ranks.
func (t *Traces) removeUnnumbered(samples []clockSamples) {
	isUnnumbered := func(call callKey, _ int64) bool {
		g := t.groups[call.value.group]
		return g != nil && g.hasMessages
	}
	for _, s := range samples {
		maps.DeleteFunc(s, isUnnumbered)
	}
}

// selectWorld returns the traces of the world with the lowest number, and adds a note for each
// other trace. A process has several worlds if it opens symmem several times.
func (t *Traces) selectWorld(sources []load.Source) []load.Source {
	lowest := sources[0].World // load.Find returns at least one source
	for _, s := range sources {
		lowest = min(lowest, s.World)
	}

	var selected []load.Source
	for _, s := range sources {
		if s.World == lowest {
			selected = append(selected, s)
			continue
		}

		t.Notes = append(t.Notes, fmt.Sprintf("%s is left out, because it belongs to another world "+
			"of the process: export the files of that world separately", s.Path))
	}

	return selected
}

// addRank adds a trace to t.ranks and returns its index there. It returns an error if the trace and
// the earlier ones cannot be of one world.
func (t *Traces) addRank(path string, log *trace.Log) (int, error) {
	if len(t.ranks) > 0 && t.ranks[0].size != log.Size {
		return 0, fmt.Errorf("%s is of a world of %d ranks, and %s of one of %d: pass the traces "+
			"of a single world of a single run", t.ranks[0].path, t.ranks[0].size, path, log.Size)
	}

	index, isDuplicate := slices.BinarySearchFunc(t.ranks, log.Rank,
		func(r rankTrace, rank int) int { return cmp.Compare(r.rank, rank) })
	if isDuplicate {
		return 0, fmt.Errorf("%s and %s are both traces of rank %d: pass the traces "+
			"of a single world of a single run", t.ranks[index].path, path, log.Rank)
	}

	t.ranks = slices.Insert(t.ranks, index, rankTrace{
		path: path, host: log.Host, rank: log.Rank, process: log.Process, size: log.Size,
		start: log.Start, missingEvents: log.Missing,
	})
	return index, nil
}

func readTrace(path string) (*trace.Log, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading a trace: %w", err)
	}
	defer f.Close()
	log, err := trace.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s is not a trace that symmem export reads: %w", path, err)
	}

	if log.Rank >= log.Size || log.Size > maxRanks {
		return nil, fmt.Errorf("%s is damaged: its rank is %d, and its world has %d ranks",
			path, log.Rank, log.Size)
	}

	return log, nil
}

// maxRanks limits the size of a world in a trace, so that a damaged file cannot exhaust memory.
const maxRanks = 1 << 20

// addGroups adds the groups that occur in a trace to t.groups. The rank of the trace belongs to
// all of them.
func (t *Traces) addGroups(log *trace.Log) {
	hasEvent := map[string]bool{} // groups of which an event has been found, by ID
	for i := range log.Records {
		r := &log.Records[i]
		switch {
		case r.Kind == event.KindRegister && r.Name != "": // Name is the ID of the group
			t.findOrAddGroup(r.Name).addRank(log.Rank)
		case r.Kind.IsGroupEvent() && r.Group != "":
			g := t.findOrAddGroup(r.Group)
			if isMessage(r) {
				g.hasMessages = true
			}

			isFirst := !hasEvent[r.Group]
			if isFirst {
				hasEvent[r.Group] = true
				g.addRank(log.Rank)
			}

			if isFirst && log.Missing > 0 {
				g.firstComplete = max(g.firstComplete, r.Number)
			}
		}
	}

	if world := t.groups[worldID]; world != nil {
		for rank := range log.Size {
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

// addRank adds a rank to the group, unless it is already a member.
func (g *group) addRank(rank int) {
	index, isMember := slices.BinarySearch(g.ranks, rank)
	if !isMember {
		g.ranks = slices.Insert(g.ranks, index, rank)
	}
}

// worldID is the ID of the group that all ranks belong to.
const worldID = "world"

// isMessage reports whether a record is of a Send or a Recv.
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

	t.addFlightNotes()
	for _, c := range t.Clocks {
		if !c.IsReference {
			t.Notes = append(t.Notes, c.String())
		}
	}
}

// areComplete reports whether no trace has lost events.
func (t *Traces) areComplete() bool {
	return !slices.ContainsFunc(t.ranks, func(r rankTrace) bool { return r.missingEvents > 0 })
}

// correctedStart returns the start time of trace i on the clock of the first rank.
func (t *Traces) correctedStart(i int) time.Time {
	return t.ranks[i].start.Add(-time.Duration(t.Clocks[i].AppliedOffset))
}

// frameOf returns the frame of a call stack for a call site, which has the form file:line. name
// appears as the name of the function. For an empty call site, frameOf returns the zero frame.
func frameOf(callSite, name string) frame {
	if callSite == "" {
		return frame{}
	}

	colon := strings.LastIndexByte(callSite, ':')
	if colon < 0 {
		return frame{name: name, file: callSite}
	}

	line, err := strconv.ParseInt(callSite[colon+1:], 10, 64)
	if err != nil {
		return frame{name: name, file: callSite}
	}

	return frame{name: name, file: callSite[:colon], line: line}
}

// timeline assigns times to the records of a trace. A record without a time gets the time of the
// preceding record.
type timeline struct {
	now time.Time // time of the last record, and at first the start time of the trace
}

// advance moves the timeline to a record and returns the time of the record. Call it for all
// records in order.
func (t *timeline) advance(r *trace.Record) time.Time {
	if !r.Time.IsZero() {
		t.now = r.Time
	}

	return t.now
}
