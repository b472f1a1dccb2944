package live

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem/event"
	"symmem/internal/page"
)

// Tests in this file build the web page that shows the state of a machine's ranks. example returns
// the state of one rank, and get requests a page of the rank with such a state.

// machineOf returns a Machine whose ranks share a pool. histories contains, by rank, the events
// that a rank has recorded in the pool.
func machineOf(histories ...Pool) *Machine {
	m := &Machine{Host: "host"}
	for rank, p := range histories {
		p.Domain = "world"
		m.Ranks = append(m.Ranks, Snapshot{Rank: rank, Backend: "host", Pools: []Pool{p}})
	}

	return m
}

// newAlloc returns the event of allocating block i of newHistory.
func newAlloc(i int) Placement {
	return Placement{
		placementKind:      int64(event.KindAlloc),
		placementOffset:    int64(i) * 256,
		placementSize:      256,
		placementRequested: 200,
	}
}

// newFree returns the event of freeing block i of newHistory.
func newFree(i int) Placement {
	e := newAlloc(i)
	e[placementKind] = int64(event.KindFree)
	e[placementRequested] = 0
	return e
}

// newHistory returns a pool with these events: a segment of 1 MiB is mapped, and then n blocks of
// 256 bytes are allocated for requests of 200 bytes. Blocks with odd numbers are freed immediately:
//
//	0 segment, 1 alloc 0, 2 alloc 1, 3 free 1, 4 alloc 2, 5 alloc 3, 6 free 3, 7 alloc 4, 8 alloc 5
func newHistory(n int) Pool {
	p := Pool{Recent: []Placement{{
		placementKind:      int64(event.KindSegment),
		placementSize:      1 << 20,
		placementRequested: 1 << 20,
	}}}
	for i := range n {
		p.Recent = append(p.Recent, newAlloc(i))
		if i%2 == 1 {
			p.Recent = append(p.Recent, newFree(i))
		}
	}

	return p
}

// TestReportOfAgreeingRanks compares a long history with a short one, which ends earlier, and with
// a late one, which begins at event 5. All have events 5 to 15 in common.
func TestReportOfAgreeingRanks(t *testing.T) {
	const lateFirst = 5
	long := newHistory(20)
	short := newHistory(10) // 16 events: a segment, 10 allocations and 5 frees
	late := Pool{First: lateFirst, Recent: long.Recent[lateFirst:]}
	built := buildPage(machineOf(long, short, late))
	if !built.Agree || !built.Compared {
		t.Errorf("Agree = %v, Compared = %v; want true, true", built.Agree, built.Compared)
	}

	s := built.Sequences[0]
	if len(s.Differences) > 0 {
		t.Errorf("differences = %+v; want none", s.Differences)
	}

	const common = 11 // all of these are requests
	if s.Equal != common {
		t.Errorf("got %d equal requests; want %d", s.Equal, common)
	}

	// Request 0 is the first one in common. Allocations and frees are requests, but not the segment.
	// So 4 of the 5 earlier events are requests.
	for rank, want := range []int{-4, -4, 0} {
		if got := s.Tracks[rank].First; got != want {
			t.Errorf("rank %d: first request of the track = %d; want %d", rank, got, want)
		}
	}
}

// One of three ranks has another event. The page must say how it differs, and name this rank.
func TestReportNamesFirstDifference(t *testing.T) {
	const otherRank = 1
	const otherEvent = 8 // an allocation
	for kind, change := range map[string]func(*Placement){
		"different size":   func(e *Placement) { e[placementRequested]++ },
		"different stream": func(e *Placement) { e[placementStream]++ },
		"different place":  func(e *Placement) { e[placementOffset] += 512 },
		"different call":   func(e *Placement) { e[placementKind] = int64(event.KindFree) },
	} {
		histories := []Pool{newHistory(20), newHistory(20), newHistory(20)}
		change(&histories[otherRank].Recent[otherEvent])
		built := buildPage(machineOf(histories...))
		differences := built.Sequences[0].Differences
		if built.Agree || len(differences) != 1 {
			t.Errorf("%s: Agree = %v, differences = %+v; want false and one difference", kind,
				built.Agree, differences)
			continue
		}

		d := differences[0]
		if d.Kind != kind {
			t.Errorf("kind = %q; want %q", d.Kind, kind)
		}

		const wantRequest = otherEvent - 1 // the segment is not a request
		if d.Request != wantRequest {
			t.Errorf("%s: request = %d; want %d", kind, d.Request, wantRequest)
		}

		if !slices.Equal(d.Blamed, []int{otherRank}) {
			t.Errorf("%s: blamed ranks = %v; want [%d]", kind, d.Blamed, otherRank)
		}
	}
}

// TestReportOfOlderBlocks uses a history whose first events are missing. The page must show a
// block that was allocated by such an event if a later event frees it.
func TestReportOfOlderBlocks(t *testing.T) {
	p := newHistory(4)
	p.First = 40            // any number above 0
	p.Recent = p.Recent[3:] // without the segment and two allocations; it begins with "free 1"
	p.Recent = append(p.Recent, newFree(0))
	p.Registered = []Window{{Group: "world", Segment: 0, Bytes: 1 << 20}}
	built := buildPage(machineOf(p))
	track := built.Sequences[0].Tracks[0]
	if want := len(p.Recent) + 2; track.Len() != want {
		t.Errorf("track has %d events; want %d, including two older blocks", track.Len(), want)
	}

	wantSegments := []page.Segment{{Bytes: 1 << 20, Initial: true}} // the size is that of the window
	if !slices.Equal(track.Segments, wantSegments) {
		t.Errorf("segments = %+v; want %+v", track.Segments, wantSegments)
	}

	if w := built.Windows; len(w) != 1 || w[0].States[0] != page.Registered {
		t.Errorf("windows = %+v; want one registered window", w)
	}
}

// Rank 0 waits for rank 1, and rank 2 has ended. The page must say both.
func TestReportOfWaits(t *testing.T) {
	m := machineOf(newHistory(3), newHistory(3))
	m.Ranks[0].Waits = []Wait{{
		Group: "world", InCall: "AllReduce 3", Since: time.Unix(9, 0), Ranks: []int{1},
		Activity: map[int]string{1: "not in a call"},
	}}
	m.Ranks = append(m.Ranks, Snapshot{Rank: 2, Error: ErrorEnded})
	built := buildPage(m)
	if len(built.Pending) != 1 {
		t.Fatalf("Pending = %+v; want one wait", built.Pending)
	}

	wait := built.Pending[0]
	if wait.Time != 9_000_000 { // 9 seconds, in microseconds
		t.Errorf("time of the wait = %d; want 9000000", wait.Time)
	}

	if want := "AllReduce 3 waits for rank 1; rank 1: not in a call"; wait.Text != want {
		t.Errorf("text of the wait = %q; want %q", wait.Text, want)
	}

	if built.Verdict != "1 of 3 ranks do not answer." {
		t.Errorf("Verdict = %q; want 1 of 3 ranks without an answer", built.Verdict)
	}
}

// TestUnchangedDataIsNotSentAgain repeats a request with the ETag of the first answer, as a browser
// does. An ETag identifies the content.
func TestUnchangedDataIsNotSentAgain(t *testing.T) {
	h := NewHandler(func(int) Snapshot { return example(1) })
	requestData := func(etag string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, dataPath, nil)
		r.Header.Set("If-None-Match", etag)
		h.ServeHTTP(w, r)
		return w
	}
	first := requestData("")
	text := first.Body.String()
	if first.Code != http.StatusOK || !strings.HasPrefix(text, "SYMPAGE\x01") {
		t.Fatalf("status %d, data %.20q; want data", first.Code, text)
	}

	// The data begin with a mark of 8 bytes, the length of the header in 4 bytes, and the header.
	const lengthOffset, headerOffset = 8, 12
	headerLength := binary.LittleEndian.Uint32([]byte(text[lengthOffset:]))
	encodedHeader := []byte(text[headerOffset:])[:headerLength]
	var header page.Page
	if err := json.Unmarshal(encodedHeader, &header); err != nil || !header.Live {
		t.Errorf("header = %+v, %v; want a live page", header, err)
	}

	second := requestData(first.Header().Get("ETag"))
	if second.Code != http.StatusNotModified || second.Body.Len() > 0 {
		t.Errorf("second request: status %d with %d bytes; want 304 with none", second.Code,
			second.Body.Len())
	}
}

// The policy is a header with which a server restricts what a browser does with a page.
func TestPolicyAllowsOnlyOwnScript(t *testing.T) {
	w := get(t, "/", example(1))
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `data-source="data.bin"`) {
		t.Errorf("status %d, body %q; want the page", w.Code, w.Body)
	}

	policy := w.Header().Get("Content-Security-Policy")
	for _, want := range []string{
		"script-src 'sha256-",    // only the script with this hash may run
		"frame-ancestors 'none'", // no other page may embed this one
	} {
		if !strings.Contains(policy, want) {
			t.Errorf("policy = %q; want it to contain %q", policy, want)
		}
	}

	if strings.Contains(policy, "unsafe") { // as in 'unsafe-inline', which allows other scripts
		t.Errorf("policy = %q; want none that is unsafe", policy)
	}
}

func TestInvalidNumberOfEventsIsRefused(t *testing.T) {
	for _, events := range []string{"-1", "8193", "many", "1e3"} { // 8192 is the maximum
		if w := get(t, jsonPath+"?events="+events, example(1)); w.Code != http.StatusBadRequest {
			t.Errorf("events=%s: status %d; want 400", events, w.Code)
		}
	}
}

// FuzzReport checks that the page can be built from any answers of ranks, which arrive as JSON.
func FuzzReport(f *testing.F) {
	unusual := Pool{First: 1 << 63, Recent: []Placement{{}}} // an event of no kind, at a high number
	seed, err := json.Marshal(machineOf(newHistory(4), unusual))
	if err != nil {
		f.Fatal(err)
	}

	f.Add(seed)
	// An allocation with negative and very large numbers, and a rank that reports nothing.
	f.Add([]byte(`{"ranks":[{"pools":[{"recent":[[2,-1,-9,9223372036854775807,-1]]}]},{}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var m Machine
		if json.Unmarshal(text, &m) != nil {
			return
		}

		if err := buildPage(&m).WriteData(io.Discard); err != nil {
			t.Errorf("WriteData = %v; want no error", err)
		}
	})
}
