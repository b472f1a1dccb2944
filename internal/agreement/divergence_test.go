package agreement

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"symmem/event"
	"symmem/internal/ledger"
	"symmem/internal/ranklist"
)

// TestReports checks the text of every kind of report. The input of each case has one line per
// rank:
//
//	agree mode=exact
//	alloc 512@0+0 free 512@0+0
//	alloc 512@0+0
//
// An event has the form "kind size@segment+offset", optionally followed by /stream and #site. A
// line may begin with tag=..., pending=n, pool=n, call=count or cast=root, which set fields of the
// rank's Config. repeat=n repeats the next event. "absent" stands for a rank that does not take
// part. The argument members=(...) lists the group's ranks by their number in the job.
func TestReports(t *testing.T) {
	datadriven.RunTest(t, "testdata/reports", func(t *testing.T, d *datadriven.TestData) string {
		mode := ModeExact
		if d.HasArg("prefix") {
			mode = ModePrefix
		}
		maxEvents := 0
		d.MaybeScanArgs(t, "kept", &maxEvents)
		names := namesOf(t, d)
		lines := strings.Split(strings.TrimSpace(d.Input), "\n")
		machines := make([]*Machine, len(lines))
		absent := map[int]bool{}
		for rank, line := range lines {
			c := parseConfig(t, line, maxEvents)
			c.Rank, c.Ranks, c.Mode, c.Group = rank, len(lines), mode, "world"
			c.Names = names
			absent[rank] = line == "absent"
			machines[rank] = mustNew(t, c)
		}
		outcomes, rounds := runAll(t, machines, absent)
		return formatOutcome(t, outcomes, rounds)
	})
}

// formatOutcome returns the outcome as text. Texts that differ between ranks fail the test.
func formatOutcome(t *testing.T, outcomes []*Outcome, rounds int) string {
	t.Helper()
	var firstOutcome *Outcome
	for _, outcome := range outcomes {
		switch {
		case outcome == nil:
		case firstOutcome == nil:
			firstOutcome = outcome
		case fmt.Sprint(outcome.Divergence) != fmt.Sprint(firstOutcome.Divergence):
			t.Fatalf("texts differ between ranks:\n%v\n%v", firstOutcome.Divergence, outcome.Divergence)
		}
	}
	out := fmt.Sprintf("rounds: %d\n", rounds)
	for _, m := range firstOutcome.Agreed {
		out += fmt.Sprintf("pool %d agreed up to %d\n", m.Ledger, m.Position)
	}
	if len(firstOutcome.Absent) > 0 {
		out += fmt.Sprintf("absent: %s\n", ranklist.Spans(firstOutcome.Absent))
	}
	if firstOutcome.Divergence == nil {
		return out
	}
	return out + firstOutcome.Divergence.Error() + "\n"
}

func namesOf(t *testing.T, d *datadriven.TestData) Names {
	t.Helper()
	if !d.HasArg("members") {
		return Names{}
	}
	n := Names{Pool: func(id uint64) string { return fmt.Sprintf("pool %d of group g", id) }}
	for _, arg := range d.CmdArgs {
		if arg.Key != "members" {
			continue
		}
		for _, value := range arg.Vals {
			var rank int
			if _, err := fmt.Sscan(value, &rank); err != nil {
				t.Fatal(err)
			}
			n.Members = append(n.Members, rank)
		}
	}
	return n
}

func parseConfig(t *testing.T, line string, maxEvents int) Config {
	t.Helper()
	c := Config{Tag: "scope end"}
	sites := ledger.NewSites()
	l := ledger.New(maxEvents)
	pool := Ledger{ID: 1, Source: ledgerWithSites{l, sites}}
	words := strings.Fields(line)
	for i := 0; i < len(words); i++ {
		name, value, _ := strings.Cut(words[i], "=")
		var n int
		_, _ = fmt.Sscan(value, &n) // 0 for values that are not numbers
		switch name {
		case "absent":
		case "tag":
			c.Tag = value
		case "pool":
			pool.ID = uint64(n)
		case "pending":
			for k := range n {
				pool.Pending = pool.Pending.Add(int32(k), 1<<20)
			}
		case "call":
			c.Call = &event.Call{
				Operation: "all-reduce", Path: "window", DataType: "float32", ReduceOp: "sum",
				Count: uint64(n), SendOffset: 512, RecvOffset: 512, Ticket: 9, Root: -1,
			}
		case "cast":
			c.Call = &event.Call{
				Operation: "broadcast", Path: "plain", DataType: "int8", Root: n, Count: 111,
				SendSegment: -1, RecvSegment: -1, Ticket: 9,
			}
		case "repeat":
			for range n {
				e := parseEvent(t, words[i+1], words[i+2])
				l.Append(&e, sites.Intern(0, e.Site))
			}
			i += 2
		default:
			e := parseEvent(t, name, words[i+1])
			l.Append(&e, sites.Intern(0, e.Site))
			i++
		}
	}
	c.Ledgers = []Ledger{pool}
	return c
}

var kinds = map[string]event.Kind{
	"segment": event.KindSegment, "alloc": event.KindAlloc, "free": event.KindFree,
	"park": event.KindPark,
}

type ledgerWithSites struct {
	*ledger.Ledger
	sites *ledger.Sites
}

func (s ledgerWithSites) EventAt(position uint64) (event.Event, bool) {
	e, isKnown := s.Ledger.EventAt(position)
	if isKnown {
		e.Site = s.sites.At(s.Load(position, &e))
	}
	return e, isKnown
}

func parseEvent(t *testing.T, kind, place string) event.Event {
	t.Helper()
	place, site, _ := strings.Cut(place, "#")
	place, stream, _ := strings.Cut(place, "/")
	e := event.Event{Kind: kinds[kind], Site: site}
	if _, err := fmt.Sscanf(place, "%d@%d+%d", &e.Size, &e.Segment, &e.Offset); err != nil {
		t.Fatalf("parsing %q: %v", place, err)
	}
	if e.Kind == event.KindAlloc || e.Kind == event.KindSegment {
		e.Requested = e.Size
	}
	_, _ = fmt.Sscan(stream, &e.Stream) // stays 0 without /stream
	return e
}
