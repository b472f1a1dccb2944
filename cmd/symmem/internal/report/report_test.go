package report

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"symmem/cmd/symmem/internal/diff"
	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/page"
)

// newHistory returns the history of a rank that made the given calls in the world. The last call
// transfers 64 bytes. Call i has the time 1000+i.
func newHistory(rank int, calls ...string) *history.Rank {
	r := &history.Rank{Number: rank, Format: "trace of symmem", File: "rank"}
	s := &history.Sequence{Class: history.Calls, ID: "world", NoPlacesReason: "calls have none"}
	for i, text := range calls {
		index := slices.Index(r.Texts, text)
		if index < 0 {
			index = len(r.Texts)
			r.Texts = append(r.Texts, text)
		}
		bytes := 64 * (i + 1) / len(calls)
		s.Events = append(s.Events, history.Event{
			Action: history.Call, Number: int64(i), Block: int32(index), Segment: -1, Stack: -1,
			UnixMicro: int64(1000 + i), Bytes: int64(bytes),
		})
	}
	r.Sequences = append(r.Sequences, s)
	return r
}

func buildPage(ranks ...*history.Rank) *page.Page {
	return Build(diff.Compare(ranks, diff.Options{}), nil)
}

func TestPaths(t *testing.T) {
	const window, plain = "AllReduce sum of 4 int8, path window, collective 1", "Barrier, path plain"
	p := buildPage(newHistory(0, window, plain, window, `"size": Agree of 8`),
		newHistory(1, window, plain, window, `"size": Agree of 8`))
	want := []page.Path{
		{Group: "group world", Operation: "AllReduce", Path: "window", Calls: []int64{2, 2}},
		{Group: "group world", Operation: "Barrier", Path: "plain", Calls: []int64{1, 1}},
		{Group: "group world", Operation: "value", Calls: []int64{1, 1}},
	}
	got := slices.Clone(p.Paths)
	for i := range got {
		got[i].Bytes = nil // compared below
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("paths differ (-want +got):\n%s", d)
	}
	if bytes := p.Paths[2].Bytes; !slices.Equal(bytes, []int64{64, 64}) {
		t.Errorf("bytes of the last call = %v; want 64 on both ranks", bytes)
	}
}

// TestPending checks that the page lists ranks that are behind, calls that have not completed, and
// segments that only some ranks have registered.
func TestPending(t *testing.T) {
	rank0, rank1 := newHistory(0, "A", "B", "C"), newHistory(1, "A", "B", "C")
	rank2 := newHistory(2, "A")
	rank1.PendingCalls = []history.PendingCall{
		{Group: "world", Text: "C", State: "scheduled", UnixMicro: 5},
	}
	const pool = "1 of group world"
	for _, r := range []*history.Rank{rank0, rank1, rank2} {
		r.Windows = []history.Window{{Pool: pool, Bytes: 64, Group: "world"}}
	}
	rank0.Windows = append(rank0.Windows, history.Window{Pool: pool, Segment: 1, Group: "world"})
	rank1.Windows[0].IsDeregistered = true
	p := buildPage(rank0, rank1, rank2)
	var got []string
	for _, row := range p.Pending {
		got = append(got, strings.TrimSpace(strings.Join([]string{row.Group, row.Text}, ": ")))
	}
	want := []string{
		"world: C: scheduled",
		"world: segment 1 of pool 1 of group world is not registered; other ranks have registered it",
		"group world: request 1 is missing: B; rank 0 has made 2 more requests",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("pending rows differ (-want +got):\n%s", d)
	}
	if last := p.Pending[2]; !slices.Equal(last.Ranks, []int{2}) || last.Time != 1001 {
		t.Errorf("ranks %v have been behind since %d; want rank 2 since 1001", last.Ranks, last.Time)
	}
	wantStates := []page.State{page.Registered, page.Deregistered, page.Registered}
	if !slices.Equal(p.Windows[0].States, wantStates) {
		t.Errorf("states of segment 0 = %v; want %v", p.Windows[0].States, wantStates)
	}
}

// TestFaults checks that ranks with the same fault share a row. The row shows the earliest known
// time.
func TestFaults(t *testing.T) {
	const text, printableText = "rank 2 is late\x1b[31m", "rank 2 is late?[31m"
	const unknown = 0
	var ranks []*history.Rank
	for i, time := range []int64{unknown, 9, 7, unknown} {
		r := newHistory(i, "A")
		r.Faults = []history.Fault{{Group: "world", Text: text, UnixMicro: time}}
		ranks = append(ranks, r)
	}
	want := []page.Row{{Ranks: []int{0, 1, 2, 3}, Group: "world", Text: printableText, Time: 7}}
	if d := cmp.Diff(want, buildPage(ranks...).Faults); d != "" {
		t.Errorf("faults differ (-want +got):\n%s", d)
	}
}

// TestOlderBlocks checks that a page contains a block that was allocated before the trace as an
// event, and that its segment is large enough for the block.
func TestOlderBlocks(t *testing.T) {
	r := &history.Rank{Sequences: []*history.Sequence{{
		Class: history.SymmemPool, Segments: []history.SegmentInfo{{Bytes: 1}},
		InitialBlocks: []history.InitialBlock{{Offset: 64, Size: 36}},
		Events: []history.Event{
			{Action: history.Alloc, Size: 8, Stack: -1},
			{Action: history.Free, Offset: 64, Block: -1, Stack: -1},
		},
	}}}
	track := buildPage(r).Sequences[0].Tracks[0]
	if track.Len() != 3 || track.Segments[0].Bytes != 100 {
		t.Errorf("the track has %d events and a segment of %d bytes; want 3 and 100", track.Len(),
			track.Segments[0].Bytes)
	}
}

func TestSummarize(t *testing.T) {
	for want, ranks := range map[string][]*history.Rank{
		"The ranks agree.": {newHistory(0, "A"), newHistory(1, "A")},
		"The ranks differ: in group world, requests differ first at request 1 (different call); in the " +
			"minority: rank 2.": {newHistory(0, "A", "B"), newHistory(1, "A", "B"), newHistory(2, "A", "C")},
		"There is nothing to compare: no two ranks have events of the same pool or group.": {
			newHistory(0, "A"),
		},
		"The ranks agree. Note: there is no file of rank 1 (trace of symmem).": {
			newHistory(0, "A"), newHistory(2, "A"),
		},
	} {
		if got := Summarize(diff.Compare(ranks, diff.Options{})); got != want {
			t.Errorf("Summarize = %q; want %q", got, want)
		}
	}
}
