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

// The input of a case has a line of words for each rank. Rank 1 lacks the last event here:
//
//	agree
//	alloc 512@0+0 free 512@0+0
//	alloc 512@0+0
//
// These words are supported:
//
//	KIND SIZE@SEGMENT+OFFSET/STREAM#SITE   an event; stream and call site are optional
//	repeat=N     append the next event N times
//	tag=scope    the operation that needs the agreement
//	pending=N    the rank is about to register N segments
//	pool=N       the ID of the pool
//	call=N       the rank calls all-reduce with N elements
//	cast=N       the rank calls broadcast with root N
//	absent       the rank does not take part; alone in its line
//
// The command "agree" may have these arguments:
//
//	prefix         compare in ModePrefix
//	kept=N         each history keeps only N events
//	members=(...)  world ranks of the group
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

// formatOutcome checks that all present ranks have the same divergence, and returns a report of the
// first outcome.
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
			t.Fatalf("rank %d has text\n%s\nwant the text of the first present rank:\n%s", rank, got, want)
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

// namesOf returns names for the ranks and pools of a case with the argument members=(...).
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

// parseConfig returns the Config for a line of the input. The history keeps maxEvents events. If
// maxEvents is 0, it keeps the default number.
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
	nextWord := func() string {
		word := words[0]
		words = words[1:]
		return word
	}
	for len(words) > 0 {
		word := nextWord()
		name, value, _ := strings.Cut(word, "=")
		var n int
		_, _ = fmt.Sscan(value, &n) // fails for words without a number
		switch name {
		case "absent": // TestReports does not start the rank
		case "tag":
			c.Tag = value
		case "pool":
			pool.ID = uint64(n)
		case "pending":
			const anyBytes = 1 << 20
			for segment := range n {
				pool.Pending = pool.Pending.Add(int32(segment), anyBytes)
			}
		case "call":
			c.Call = allReduceCall(uint64(n))
		case "cast":
			c.Call = broadcastCall(n)
		case "repeat":
			kind, text := nextWord(), nextWord()
			appendEvents(parseEvent(t, kind, text), n)
		default: // the kind of an event
			appendEvents(parseEvent(t, word, nextWord()), 1)
		}
	}

	c.Ledgers = []Ledger{pool}
	return c
}

const (
	anyTicket = 9  // printed in reports
	none      = -1 // no root, no segment
)

// allReduceCall returns a call on memory in segment 0 of pool 0.
func allReduceCall(count uint64) *event.Call {
	return &event.Call{
		Operation: "all-reduce", Path: "window", DataType: "float32", ReduceOp: "sum",
		Count: count, SendOffset: 512, RecvOffset: 512, Ticket: anyTicket, Root: none,
	}
}

// broadcastCall returns a call on memory outside pools.
func broadcastCall(root int) *event.Call {
	const anyCount = 111
	return &event.Call{
		Operation: "broadcast", Path: "plain", DataType: "int8", Count: anyCount, Ticket: anyTicket,
		Root: root, SendSegment: none, RecvSegment: none,
	}
}

var kinds = map[string]event.Kind{
	"segment": event.KindSegment, "alloc": event.KindAlloc, "free": event.KindFree,
	"park": event.KindPark,
}

// ledgerWithSites is a Source whose events have call sites.
type ledgerWithSites struct {
	*ledger.Ledger
	sites *ledger.Sites
}

func (s ledgerWithSites) EventAt(position uint64) (event.Event, bool) {
	e, isKept := s.Ledger.EventAt(position)
	if isKept {
		e.Site = s.sites.At(s.Load(position, &e))
	}

	return e, isKept
}

// parseEvent parses the text SIZE@SEGMENT+OFFSET/STREAM#SITE, in which the stream and the site are
// optional.
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
