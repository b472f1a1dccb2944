package report

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"symmem/cmd/symmem/internal/diff"
	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/page"
)

const unknown = -1 // number of an unknown segment or call stack

// timeOfCall returns an arbitrary start time in microseconds, plus 1 us for each earlier call.
func timeOfCall(i int) int64 { return int64(1000 + i) }

// newHistory returns a history of calls in the group "world". Call i transfers 1<<i bytes, so that
// a sum of bytes shows which calls it includes.
func newHistory(rank int, calls ...string) *history.Rank {
	r := &history.Rank{Number: rank, Format: "trace of symmem", File: "rank"}
	sequence := &history.Sequence{Class: history.Calls, ID: "world", NoPlacesReason: "calls have none"}
	for i, text := range calls {
		textIndex := slices.Index(r.Texts, text)
		if textIndex < 0 {
			textIndex = len(r.Texts)
			r.Texts = append(r.Texts, text)
		}

		sequence.Events = append(sequence.Events, history.Event{
			Action: history.Call, Number: int64(i), Segment: unknown, Stack: unknown,
			Block:     int32(textIndex), // Block holds the text index of a call
			UnixMicro: timeOfCall(i),
			Bytes:     1 << i,
		})
	}

	r.Sequences = append(r.Sequences, sequence)
	return r
}

func buildPage(ranks ...*history.Rank) *page.Page {
	return Build(diff.Compare(ranks, diff.Options{}), nil)
}

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

	behind := p.Pending[2]    // row of the missing request
	wantTime := timeOfCall(1) // of B, which rank 2 has not called
	if !slices.Equal(behind.Ranks, []int{2}) || behind.Time != wantTime {
		t.Errorf("got ranks %v behind since %d; want [2] since %d", behind.Ranks, behind.Time, wantTime)
	}

	wantStates := []page.State{page.Registered, page.Deregistered, page.Registered}
	if got := p.Windows[0].States; !slices.Equal(got, wantStates) {
		t.Errorf("got states of segment 0 by rank %v; want %v", got, wantStates)
	}
}

func pendingHistories() []*history.Rank {
	rank0 := newHistory(0, "A", "B", "C")
	rank1 := newHistory(1, "A", "B", "C")
	rank2 := newHistory(2, "A") // behind by two calls
	rank1.PendingCalls = []history.PendingCall{
		{Group: "world", Text: "C", State: "scheduled", UnixMicro: timeOfCall(2)},
	}
	ranks := []*history.Rank{rank0, rank1, rank2}
	const pool = "1 of group world"
	for _, r := range ranks {
		r.Windows = []history.Window{{Pool: pool, Segment: 0, Bytes: 64, Group: "world"}}
	}

	rank1.Windows[0].IsDeregistered = true
	onlyOnRank0 := history.Window{Pool: pool, Segment: 1, Group: "world"}
	rank0.Windows = append(rank0.Windows, onlyOnRank0)
	return ranks
}

// Ranks with the same fault share a row. Its time is the earliest known time of the ranks.
func TestFaults(t *testing.T) {
	const text = "rank 2 is late\x1b[31m" // with a terminal escape sequence
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

// A block older than the history gets an event, and the segment grows to contain the block.
func TestOlderBlocks(t *testing.T) {
	const olderBlock = -1 // a block without an allocation event
	const tooSmall = 1    // segment size in bytes
	const offset, size = 64, 36
	pool := &history.Sequence{
		Class:         history.SymmemPool,
		Segments:      []history.SegmentInfo{{Bytes: tooSmall}},
		InitialBlocks: []history.InitialBlock{{Offset: offset, Size: size}},
		Events: []history.Event{
			{Action: history.Alloc, Size: 8, Stack: unknown},
			{Action: history.Free, Offset: offset, Block: olderBlock, Stack: unknown},
		},
	}
	r := &history.Rank{Sequences: []*history.Sequence{pool}}
	track := buildPage(r).Sequences[0].Tracks[0] // the events of the only rank
	wantEvents := len(pool.InitialBlocks) + len(pool.Events)
	if got := track.Len(); got != wantEvents {
		t.Errorf("got %d events, want %d", got, wantEvents)
	}

	const wantBytes = offset + size // end of the older block
	if got := track.Segments[0].Bytes; got != wantBytes {
		t.Errorf("got a segment of %d bytes, want %d", got, wantBytes)
	}
}

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
