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

// TestReports checks the texts of reports about ranks whose histories or calls differ. The input of
// each case has one line for each rank. For example, rank 1 lacks the last event of rank 0 here:
//
//	agree
//	alloc 512@0+0 free 512@0+0
//	alloc 512@0+0
//
// An event has the form "kind size@segment+offset", optionally followed by /stream and #site, the
// place in the program that caused it. The word repeat=n appends the event after it n times. A line
// may also contain words that set fields of the rank's Config:
//
//	tag=scope    the operation that needs the agreement
//	pending=n    the rank is about to register n segments
//	pool=n       the ID of the pool
//	call=n       the rank calls all-reduce with n elements
//	cast=n       the rank calls broadcast with root n
//	absent       the rank does not take part; only alone in a line
//
// The first line of a case may have the arguments prefix, to compare in ModePrefix; kept=n, the
// number of events that each history keeps; and members=(...), which lists the group's ranks by
// their numbers in the job.
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
			c.Rank = rank
			c.Ranks = len(lines)
			c.Mode = mode
			c.Group = "world"
			c.Names = names
			absent[rank] = line == "absent"
			machines[rank] = mustNew(t, c)
		}

		outcomes, rounds := runAll(t, machines, absent)
		return formatOutcome(t, outcomes, rounds)
	})
}

// formatOutcome returns the outcome of the first rank that is not absent, as text. If the texts of
// reports differ between ranks, it fails the test.
func formatOutcome(t *testing.T, outcomes []*Outcome, rounds int) string {
	t.Helper()
	var firstOutcome *Outcome
	for rank, outcome := range outcomes {
		if outcome == nil { // the rank is absent
			continue
		}

		if firstOutcome == nil {
			firstOutcome = outcome
		}

		got := fmt.Sprint(outcome.Divergence)
		want := fmt.Sprint(firstOutcome.Divergence)
		if got != want {
			t.Fatalf("rank %d has text\n%s\nwant that of the first rank:\n%s", rank, got, want)
		}
	}

	out := fmt.Sprintf("rounds: %d\n", rounds)
	for _, prefix := range firstOutcome.Agreed {
		out += fmt.Sprintf("pool %d agreed up to %d\n", prefix.Ledger, prefix.Position)
	}

	if len(firstOutcome.Absent) > 0 {
		out += fmt.Sprintf("absent: %s\n", ranklist.Spans(firstOutcome.Absent))
	}

	if firstOutcome.Divergence == nil {
		return out
	}

	return out + firstOutcome.Divergence.Error() + "\n"
}

// namesOf returns the names for reports if the case has the argument members=(...): the members,
// and a function that names pools. Otherwise, it returns no names.
func namesOf(t *testing.T, d *datadriven.TestData) Names {
	t.Helper()
	if !d.HasArg("members") {
		return Names{}
	}

	names := Names{Pool: func(id uint64) string { return fmt.Sprintf("pool %d of group g", id) }}
	for _, arg := range d.CmdArgs {
		if arg.Key != "members" {
			continue
		}

		for _, value := range arg.Vals {
			var rank int
			if _, err := fmt.Sscan(value, &rank); err != nil {
				t.Fatal(err)
			}

			names.Members = append(names.Members, rank)
		}
	}

	return names
}

// parseConfig returns the Config for a line of the input. Its history keeps maxEvents events, or
// the default number if maxEvents is 0.
func parseConfig(t *testing.T, line string, maxEvents int) Config {
	t.Helper()
	c := Config{Tag: "scope end"}
	sites := ledger.NewSites()
	l := ledger.New(maxEvents)
	pool := Ledger{ID: 1, Source: ledgerWithSites{l, sites}}
	appendEvents := func(e event.Event, count int) {
		for range count {
			l.Append(&e, sites.Intern(0, e.Site))
		}
	}
	words := strings.Fields(line)
	for i := 0; i < len(words); i++ {
		name, value, _ := strings.Cut(words[i], "=")
		var n int
		_, _ = fmt.Sscan(value, &n) // 0 for values that are not numbers
		switch name {
		case "absent": // TestReports does not start the rank
		case "tag":
			c.Tag = value
		case "pool":
			pool.ID = uint64(n)
		case "pending":
			for segment := range n {
				pool.Pending = pool.Pending.Add(int32(segment), 1<<20)
			}
		case "call":
			c.Call = allReduceCall(uint64(n))
		case "cast":
			c.Call = broadcastCall(n)
		case "repeat":
			appendEvents(parseEvent(t, words[i+1], words[i+2]), n)
			i += 2 // skips both words of the event
		default: // the first word of an event
			appendEvents(parseEvent(t, words[i], words[i+1]), 1)
			i++ // skips the second word
		}
	}

	c.Ledgers = []Ledger{pool}
	return c
}

// allReduceCall returns a call whose inputs and outputs are in the pool. It uses the window path,
// for memory that is registered with the communication library.
func allReduceCall(count uint64) *event.Call {
	return &event.Call{
		Operation: "all-reduce", Path: "window", DataType: "float32", ReduceOp: "sum",
		Count: count, SendOffset: 512, RecvOffset: 512, Ticket: 9,
		Root: -1, // none
	}
}

// broadcastCall returns a call on other memory, which is in no segment.
func broadcastCall(root int) *event.Call {
	return &event.Call{
		Operation: "broadcast", Path: "plain", DataType: "int8", Count: 111, Ticket: 9,
		Root: root, SendSegment: -1, RecvSegment: -1,
	}
}

// kinds contains the kinds of event that the input can name.
var kinds = map[string]event.Kind{
	"segment": event.KindSegment, "alloc": event.KindAlloc, "free": event.KindFree,
	"park": event.KindPark,
}

// ledgerWithSites is a Source whose events have call sites, as those of real pools do.
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

// parseEvent returns the event with the given kind and a text "size@segment+offset/stream#site",
// where the stream and the site are optional. It fails the test if the text has another form.
func parseEvent(t *testing.T, kind, text string) event.Event {
	t.Helper()
	text, site, _ := strings.Cut(text, "#")
	place, stream, _ := strings.Cut(text, "/")
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
