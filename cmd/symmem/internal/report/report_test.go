package report

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"symmem/cmd/symmem/internal/diff"
	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/page"
)

// These tests cover Build, which makes the page of symmem report. Its input is the result of a
// comparison of ranks. A rank has a history of calls, such as an AllReduce in the group "world",
// and of memory. The page has tables: paths, pending calls, windows and faults.

const unknown = -1 // the segment or call stack of an event

// timeOfCall returns the time of a rank's call i in microseconds since 1970.
func timeOfCall(i int) int64 { return int64(1000 + i) }

// newHistory returns the history of a rank that made the given calls in the group "world". Call i
// transfers 1<<i bytes, whatever its text, so that a sum of bytes shows which calls it includes.
func newHistory(rank int, calls ...string) *history.Rank {
	r := &history.Rank{Number: rank, Format: "trace of symmem", File: "rank"}
	s := &history.Sequence{Class: history.Calls, ID: "world", NoPlacesReason: "calls have none"}
	for i, text := range calls {
		textIndex := slices.Index(r.Texts, text)
		if textIndex < 0 {
			textIndex = len(r.Texts)
			r.Texts = append(r.Texts, text)
		}

		s.Events = append(s.Events, history.Event{
			Action: history.Call, Number: int64(i), Segment: unknown, Stack: unknown,
			Block:     int32(textIndex), // for a call, this field is the index of its text
			UnixMicro: timeOfCall(i),
			Bytes:     1 << i,
		})
	}

	r.Sequences = append(r.Sequences, s)
	return r
}

// buildPage compares ranks, and returns the page about the result.
func buildPage(ranks ...*history.Rank) *page.Page {
	return Build(diff.Compare(ranks, diff.Options{}), nil)
}

// TestPaths checks that the page counts calls and bytes for each operation and path. The path is
// the way in which symmem executed a call. Agree, which compares a value between ranks, has no
// path.
func TestPaths(t *testing.T) {
	calls := []string{
		"AllReduce sum of 4 int8, path window, collective 1", // 1 byte
		"Barrier, path plain",                                // 2 bytes
		"AllReduce sum of 4 int8, path window, collective 1", // 4 bytes
		`"size": Agree of 8`,                                 // 8 bytes
	}
	p := buildPage(newHistory(0, calls...), newHistory(1, calls...))
	want := []page.Path{ // Calls and Bytes have an element for each rank
		{
			Group: "group world", Operation: "AllReduce", Path: "window",
			Calls: []int64{2, 2}, Bytes: []int64{1 + 4, 1 + 4},
		},
		{
			Group: "group world", Operation: "Barrier", Path: "plain",
			Calls: []int64{1, 1}, Bytes: []int64{2, 2},
		},
		{
			Group: "group world", Operation: "value", Path: "",
			Calls: []int64{1, 1}, Bytes: []int64{8, 8},
		},
	}
	if d := cmp.Diff(want, p.Paths); d != "" {
		t.Errorf("paths differ (-want +got):\n%s", d)
	}
}

// TestPending checks the table of pending calls. It lists calls that have not completed, segments
// of memory that only some ranks have registered, and ranks that are behind: they have made fewer
// calls.
func TestPending(t *testing.T) {
	p := buildPage(pendingHistories()...)
	var got []string
	for _, row := range p.Pending {
		got = append(got, row.Group+": "+row.Text)
	}

	want := []string{
		"world: C: scheduled",
		"world: segment 1 of pool 1 of group world is not registered; other ranks have registered it",
		"group world: request 1 is missing: B; rank 0 has made 2 more requests",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("pending rows differ (-want +got):\n%s", d)
	}

	behind := p.Pending[2]
	wantTime := timeOfCall(1) // of B, which rank 2 has not called
	if !slices.Equal(behind.Ranks, []int{2}) || behind.Time != wantTime {
		t.Errorf("got ranks %v behind since %d; want [2] since %d", behind.Ranks, behind.Time, wantTime)
	}

	wantStates := []page.State{page.Registered, page.Deregistered, page.Registered}
	if got := p.Windows[0].States; !slices.Equal(got, wantStates) {
		t.Errorf("got states of segment 0 by rank %v; want %v", got, wantStates)
	}
}

// pendingHistories returns the histories of ranks 0 to 2. Call C of rank 1 has not completed. Rank
// 2 is behind. All ranks have registered segment 0 of a pool, and rank 1 has deregistered it later.
// Only rank 0 has registered segment 1.
func pendingHistories() []*history.Rank {
	rank0 := newHistory(0, "A", "B", "C")
	rank1 := newHistory(1, "A", "B", "C")
	rank2 := newHistory(2, "A")
	ranks := []*history.Rank{rank0, rank1, rank2}
	rank1.PendingCalls = []history.PendingCall{
		{Group: "world", Text: "C", State: "scheduled", UnixMicro: 5},
	}
	const pool = "1 of group world"
	for _, r := range ranks {
		r.Windows = []history.Window{{Pool: pool, Segment: 0, Bytes: 64, Group: "world"}}
	}

	rank1.Windows[0].IsDeregistered = true
	rank0.Windows = append(rank0.Windows, history.Window{Pool: pool, Segment: 1, Group: "world"})
	return ranks
}

// TestFaults checks that ranks with the same fault share a row, which has the earliest known time.
// Control characters in its text become question marks.
func TestFaults(t *testing.T) {
	const text = "rank 2 is late\x1b[31m" // ends with a command to a terminal
	const printableText = "rank 2 is late?[31m"
	const unknownTime = 0
	var ranks []*history.Rank
	for number, time := range []int64{unknownTime, 9, 7, unknownTime} {
		r := newHistory(number, "A")
		r.Faults = []history.Fault{{Group: "world", Text: text, UnixMicro: time}}
		ranks = append(ranks, r)
	}

	want := []page.Row{
		{Ranks: []int{0, 1, 2, 3}, Group: "world", Text: printableText, Time: 7},
	}
	if d := cmp.Diff(want, buildPage(ranks...).Faults); d != "" {
		t.Errorf("faults differ (-want +got):\n%s", d)
	}
}

// TestOlderBlocks checks that the page has an event for a block that was allocated before the
// history began, and that its segment includes the block. The history gives the segment 1 byte.
func TestOlderBlocks(t *testing.T) {
	const olderBlock = -1 // is older than the history, so it has no number
	pool := &history.Sequence{
		Class:         history.SymmemPool,
		Segments:      []history.SegmentInfo{{Bytes: 1}},
		InitialBlocks: []history.InitialBlock{{Offset: 64, Size: 36}},
		Events: []history.Event{
			{Action: history.Alloc, Size: 8, Stack: unknown},
			{Action: history.Free, Offset: 64, Block: olderBlock, Stack: unknown},
		},
	}
	r := &history.Rank{Sequences: []*history.Sequence{pool}}
	track := buildPage(r).Sequences[0].Tracks[0] // the events of the only rank
	wantEvents := len(pool.InitialBlocks) + len(pool.Events)
	if got := track.Len(); got != wantEvents {
		t.Errorf("got %d events, want %d", got, wantEvents)
	}

	const wantBytes = 64 + 36 // up to the end of the older block
	if got := track.Segments[0].Bytes; got != wantBytes {
		t.Errorf("got a segment of %d bytes, want %d", got, wantBytes)
	}
}

// TestSummarize checks the sentences about the result of a comparison.
func TestSummarize(t *testing.T) {
	for _, c := range []struct {
		name  string
		ranks []*history.Rank
		want  string
	}{
		{
			name:  "the same calls",
			ranks: []*history.Rank{newHistory(0, "A"), newHistory(1, "A")},
			want:  "The ranks agree.",
		},
		{
			name: "a different call on rank 2",
			ranks: []*history.Rank{
				newHistory(0, "A", "B"),
				newHistory(1, "A", "B"),
				newHistory(2, "A", "C"),
			},
			want: "The ranks differ: in group world, requests differ first at request 1 " +
				"(different call); in the minority: rank 2.",
		},
		{
			name:  "a single rank",
			ranks: []*history.Rank{newHistory(0, "A")},
			want:  "There is nothing to compare: no two ranks have events of the same pool or group.",
		},
		{
			name:  "no file of rank 1",
			ranks: []*history.Rank{newHistory(0, "A"), newHistory(2, "A")},
			want:  "The ranks agree. Note: there is no file of rank 1 (trace of symmem).",
		},
	} {
		if got := Summarize(diff.Compare(c.ranks, diff.Options{})); got != c.want {
			t.Errorf("%s: Summarize = %q; want %q", c.name, got, c.want)
		}
	}
}
