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

// machineOf returns a Machine whose ranks share a pool. histories[i] holds the pool's events of
// rank i.
func machineOf(histories ...Pool) *Machine {
	m := &Machine{Host: "host"}
	for i, p := range histories {
		p.Domain = "world"
		m.Ranks = append(m.Ranks, Snapshot{Rank: i, Backend: "host", Pools: []Pool{p}})
	}
	return m
}

// newHistory returns a pool with these events: a segment of 1 MiB is mapped, and then n blocks of
// 256 bytes are allocated for requests of 200 bytes. Every second block is freed immediately. The
// elements of a Placement are listed at placementKind.
func newHistory(n int) Pool {
	p := Pool{Recent: []Placement{{int64(event.KindSegment), 0, 0, 0, 1 << 20, 1 << 20}}}
	for i := range n {
		e := Placement{int64(event.KindAlloc), 0, 0, int64(i) * 256, 256, 200}
		p.Recent = append(p.Recent, e)
		if i%2 == 1 {
			e[placementKind], e[placementRequested] = int64(event.KindFree), 0
			p.Recent = append(p.Recent, e)
		}
	}
	return p
}

// TestReportOfAgreeingRanks compares a history with its first part and its last part.
func TestReportOfAgreeingRanks(t *testing.T) {
	long, short := newHistory(20), newHistory(10)
	const lateFirst = 5
	late := Pool{First: lateFirst, Recent: long.Recent[lateFirst:]}
	built := buildPage(machineOf(long, short, late))
	s := built.Sequences[0]
	if !built.Agree || !built.Compared || len(s.Differences) > 0 || s.Equal != 11 {
		t.Errorf("agree = %v with %d differences and %d equal requests; want no difference and "+
			"11 equal requests", built.Agree, len(s.Differences), s.Equal)
	}
	for rank, want := range []int{-4, -4, 0} {
		if got := s.Tracks[rank].First; got != want {
			t.Errorf("rank %d: first request of the track = %d; want %d", rank, got, want)
		}
	}
}

func TestReportNamesFirstDifference(t *testing.T) {
	const otherRank, otherEvent = 1, 8
	for kind, change := range map[string]func(*Placement){
		"different size":   func(e *Placement) { e[placementRequested]++ },
		"different stream": func(e *Placement) { e[placementStream]++ },
		"different place":  func(e *Placement) { e[placementOffset] += 512 },
		"different call":   func(e *Placement) { e[placementKind] = int64(event.KindFree) },
	} {
		histories := []Pool{newHistory(20), newHistory(20), newHistory(20)}
		change(&histories[otherRank].Recent[otherEvent]) // an allocation
		built := buildPage(machineOf(histories...))
		const wantRequest = otherEvent - 1 // the segment is not a request
		d := built.Sequences[0].Differences
		if built.Agree || len(d) != 1 || d[0].Kind != kind || d[0].Request != wantRequest ||
			!slices.Equal(d[0].Blamed, []int{otherRank}) {
			t.Errorf("differences = %+v; want %q at request %d on rank %d", d, kind, wantRequest,
				otherRank)
		}
	}
}

// TestReportOfOlderBlocks uses a history whose first events are missing. The page must show a
// block that was allocated by such an event if a later event frees it.
func TestReportOfOlderBlocks(t *testing.T) {
	p := newHistory(4)
	p.First = 40            // any number above 0
	p.Recent = p.Recent[3:] // without the segment and two allocations
	free := Placement{int64(event.KindFree), 0, 0, 0, 256, 0}
	p.Recent = append(p.Recent, free)
	p.Registered = []Window{{Group: "world", Segment: 0, Bytes: 1 << 20}}
	built := buildPage(machineOf(p))
	track := built.Sequences[0].Tracks[0]
	if track.Len() != len(p.Recent)+2 || len(track.Segments) != 1 ||
		track.Segments[0] != (page.Segment{Bytes: 1 << 20, Initial: true}) {
		t.Errorf("track has %d events and segments %+v; want %d events, including two older blocks",
			track.Len(), track.Segments, len(p.Recent)+2)
	}
	if w := built.Windows; len(w) != 1 || w[0].States[0] != page.Registered {
		t.Errorf("windows = %+v; want one registered window", w)
	}
}

func TestReportOfWaits(t *testing.T) {
	m := machineOf(newHistory(3), newHistory(3))
	m.Ranks[0].Waits = []Wait{{
		Group: "world", InCall: "AllReduce 3", Since: time.Unix(9, 0), Ranks: []int{1},
		Activity: map[int]string{1: "not in a call"},
	}}
	m.Ranks = append(m.Ranks, Snapshot{Rank: 2, Error: ErrorEnded})
	built := buildPage(m)
	if p := built.Pending; len(p) != 1 || p[0].Time != 9_000_000 ||
		p[0].Text != "AllReduce 3 waits for rank 1; rank 1: not in a call" {
		t.Errorf("Pending = %+v; want the wait for rank 1", p)
	}
	if built.Verdict != "1 of 3 ranks do not answer." {
		t.Errorf("Verdict = %q; want 1 of 3 ranks without an answer", built.Verdict)
	}
}

// TestUnchangedDataIsNotSentAgain repeats a request with the ETag of the first answer.
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
	var header page.Page // JSON after the mark and the length n
	n := binary.LittleEndian.Uint32([]byte(text[8:]))
	if err := json.Unmarshal([]byte(text[12:12+n]), &header); err != nil || !header.Live {
		t.Errorf("header = %+v, %v; want a live page", header, err)
	}
	second := requestData(first.Header().Get("ETag"))
	if second.Code != http.StatusNotModified || second.Body.Len() > 0 {
		t.Errorf("second request: status %d with %d bytes; want 304 with none", second.Code,
			second.Body.Len())
	}
}

func TestPolicyAllowsOnlyOwnScript(t *testing.T) {
	w := get(t, "/", example(1))
	policy := w.Header().Get("Content-Security-Policy")
	if w.Code != http.StatusOK || !strings.Contains(policy, "script-src 'sha256-") ||
		!strings.Contains(policy, "frame-ancestors 'none'") || strings.Contains(policy, "unsafe") ||
		!strings.Contains(w.Body.String(), `data-source="data.bin"`) {
		t.Errorf("status %d, policy %q; want the page and a policy with the hash of its script", w.Code,
			policy)
	}
}

func TestInvalidNumberOfEventsIsRefused(t *testing.T) {
	for _, events := range []string{"-1", "8193", "many", "1e3"} {
		if w := get(t, jsonPath+"?events="+events, example(1)); w.Code != http.StatusBadRequest {
			t.Errorf("events=%s: status %d; want 400", events, w.Code)
		}
	}
}

// FuzzReport checks that the page can be built from any answer of a rank.
func FuzzReport(f *testing.F) {
	seed, err := json.Marshal(machineOf(newHistory(4), Pool{First: 1 << 63, Recent: []Placement{{}}}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
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
