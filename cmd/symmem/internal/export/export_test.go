package export

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem/cmd/symmem/internal/diff"
	"symmem/cmd/symmem/internal/diff/load"
	"symmem/event"
	"symmem/trace"
)

// traceRun writes the traces of ranks that make the same calls, and returns their folder. The clock
// of the last rank is ahead by the given time.
func traceRun(t testing.TB, ranks, calls int, ahead time.Duration) string {
	t.Helper()
	folder := t.TempDir()
	var sources []*trace.Source
	for rank := range ranks {
		w, err := trace.Create(folder, trace.Options{Rank: rank, Size: ranks, Records: 16 * calls})
		if err != nil {
			t.Fatal(err)
		}

		sources = append(sources, w.NewSource())
	}

	call := &event.Call{
		Operation: "AllReduce", ReduceOp: "sum", DataType: "float32", Count: 1024, Path: "window",
		Root: -1, SendSegment: -1, RecvSegment: -1, Bytes: 4096, Digest: 77,
	}
	for n := range calls {
		for rank, s := range sources {
			recordStep(s, rank, n, call)
		}
	}

	shiftClock(t, filepath.Join(folder, trace.FileName(ranks-1)), ahead)
	return folder
}

// recordStep records a step of a rank: a segment in every eighth step, an allocation, a collective,
// a value, and the free of every second block.
func recordStep(s *trace.Source, rank, n int, call *event.Call) {
	const blockBytes = 512
	e := event.Event{
		Group: worldID, Rank: int32(rank), Segment: int32(n / 8), Site: "train.go:12",
		Number: uint64(4 * n),
	}
	if n%8 == 0 {
		e.Kind, e.Size = event.KindSegment, 2<<20
		s.Record(&e)
	}

	e.Number++
	e.Kind, e.Size, e.Requested, e.Offset = event.KindAlloc, blockBytes, 500, int64(n%8)*blockBytes
	s.Record(&e)
	s.Record(&event.Event{
		Kind: event.KindCollective, Group: worldID, Call: call, Number: uint64(2 * n), Segment: -1,
		Site: "train.go:14",
	})
	s.Record(&event.Event{
		Kind: event.KindStep, Operation: "Step", Group: worldID, Text: fmt.Sprint(n),
		Number: uint64(2*n + 1), Segment: -1,
	})
	if n%2 == 0 {
		e.Number++
		e.Kind = event.KindFree
		s.Record(&e)
	}
}

// shiftClock changes a trace as if the clock of its rank were ahead.
func shiftClock(t testing.TB, path string, ahead time.Duration) {
	t.Helper()
	const offsetStart = 56 // docs/reference/trace.md
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	start := binary.LittleEndian.Uint64(b[offsetStart:]) + uint64(ahead)
	binary.LittleEndian.PutUint64(b[offsetStart:], start)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, folder string) *Traces {
	t.Helper()
	traces, err := Open([]string{folder})
	if err != nil {
		t.Fatal(err)
	}

	return traces
}

// archiveOf returns the files of a Perfetto archive.
func archiveOf(t *testing.T, traces *Traces) map[string][]byte {
	t.Helper()
	var b bytes.Buffer
	if err := WritePerfetto(&b, traces, "v1"); err != nil {
		t.Fatal(err)
	}

	z, err := zip.NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		t.Fatal(err)
	}

	files := map[string][]byte{}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}

		if files[f.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}

	return files
}

// TestPerfettoManifest checks what Perfetto's reference requires of a manifest: its first bytes,
// its version, entries that name files in the archive, and offsets that are not negative.
func TestPerfettoManifest(t *testing.T) {
	files := archiveOf(t, open(t, traceRun(t, 3, 20, -time.Hour)))
	text := files["perfetto_manifest.json"]
	if !bytes.HasPrefix(text, []byte(`{"perfetto_manifest"`)) {
		t.Fatalf("the manifest begins %.40q", text)
	}

	var m struct {
		Manifest manifest `json:"perfetto_manifest"`
	}
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}

	if m.Manifest.Version != 1 || len(m.Manifest.Files) != 3 || len(files) != 4 {
		t.Fatalf("manifest = %+v of %d files; want version 1 and 3 of 4 files", m, len(files))
	}

	references := 0
	host, _ := os.Hostname()
	for _, f := range m.Manifest.Files {
		if f.Machine == nil || f.Machine.Name != host {
			t.Errorf("%s: machine = %v; want %s", f.Path, f.Machine, host)
		}

		if files[f.Path] == nil {
			t.Errorf("the manifest names %s, which is not in the archive", f.Path)
		}

		switch c := f.Clocks; {
		case c == nil:
			references++
		case files[c.SyncTo.File] == nil || c.OffsetNS < 0 || c.OffsetNS > int64(time.Minute):
			t.Errorf("%s: clock = %+v; want an offset of 0 to a minute", f.Path, c)
		}
	}

	if references != 1 {
		t.Errorf("got %d reference files; want 1", references)
	}
}

func TestPerfettoEvents(t *testing.T) {
	files := archiveOf(t, open(t, traceRun(t, 2, 20, 0)))
	var rank struct {
		Events []struct {
			Phase    string  `json:"ph"`
			Name     string  `json:"name"`
			Time     float64 `json:"ts"`
			Duration float64 `json:"dur"`
			Args     map[string]any
		} `json:"traceEvents"`
	}
	if err := json.Unmarshal(files["rank1.json"], &rank); err != nil {
		t.Fatal(err)
	}

	count := map[string]int{}
	for _, e := range rank.Events {
		count[e.Phase]++
		if e.Time < 0 || e.Phase == "X" && e.Duration <= 0 {
			t.Errorf("event %+v; want a time of at least 0 and a positive duration", e)
		}
	}

	if count["i"] != 20 || count["X"] != 20 || count["C"] != 20 && count["C"] != 21 {
		t.Errorf("events by phase = %v; want 20 calls, 20 steps and 20 or 21 counters", count)
	}

	last := rank.Events[len(rank.Events)-2]
	if last.Phase == "C" && last.Args["allocated"] != float64(10*512) {
		t.Errorf("last counter = %v; want 5120 allocated bytes", last.Args)
	}
}

// TestFlightRecorderDumps reads dumps with the reader of symmem diff. python/tests/test_export.py
// reads them with PyTorch's analyzer.
func TestFlightRecorderDumps(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "dumps")
	calls, messages, err := WriteFlightRecorder(folder, open(t, traceRun(t, 3, 20, 0)))
	if err != nil || calls != 60 || messages != 0 {
		t.Fatalf("WriteFlightRecorder = %d, %d, %v; want 60 calls", calls, messages, err)
	}

	agree(t, folder, 20)
}

func TestSnapshots(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "snapshots")
	events, err := WriteSnapshots(folder, open(t, traceRun(t, 3, 800, 0)))
	if want := 3 * (100 + 800 + 2*400); err != nil || events != want {
		t.Fatalf("WriteSnapshots = %d, %v; want %d events", events, err, want)
	}

	agree(t, folder, 1200)
}

// agree checks that the files in a folder can be read, and that the ranks agree on the given number
// of requests.
func agree(t *testing.T, folder string, requests int) {
	t.Helper()
	sources, err := load.Find([]string{folder}, nil)
	if err != nil {
		t.Fatal(err)
	}

	histories, err := load.Files(sources, load.Options{Device: -1})
	if err != nil {
		t.Fatal(err)
	}

	r := diff.Compare(histories, diff.Options{})
	if !r.RanksAgree || len(r.Sequences) != 1 || r.Sequences[0].EqualRequests != requests {
		t.Errorf("report = %+v; want agreement in %d requests", r, requests)
	}
}

// TestPoolsWithoutDomainAreNotCompared exports snapshots of two ranks. Rank 1 first uses a pool
// without a domain, which rank 0 does not use. The pool that both ranks use must nevertheless have
// the same number on both.
func TestPoolsWithoutDomainAreNotCompared(t *testing.T) {
	folder := t.TempDir()
	for rank := range 2 {
		w, err := trace.Create(folder, trace.Options{Rank: rank, Size: 2, Records: 64})
		if err != nil {
			t.Fatal(err)
		}

		s := w.NewSource()
		for _, group := range []string{"", worldID}[1-rank:] {
			s.Record(&event.Event{Kind: event.KindSegment, Group: group, Size: 2 << 20})
			s.Record(&event.Event{Kind: event.KindAlloc, Group: group, Size: 512, Requested: 512})
		}
	}

	snapshots := filepath.Join(t.TempDir(), "snapshots")
	if events, err := WriteSnapshots(snapshots, open(t, folder)); err != nil || events != 6 {
		t.Fatalf("WriteSnapshots = %d, %v; want 6 events", events, err)
	}

	agree(t, snapshots, 1)
}

func TestFoldersWithOtherFilesAreRefused(t *testing.T) {
	traces, folder := open(t, traceRun(t, 2, 4, 0)), t.TempDir()
	for range 2 { // The second export replaces the files of the first.
		if _, _, err := WriteFlightRecorder(folder, traces); err != nil {
			t.Fatal(err)
		}
	}

	_, err := WriteSnapshots(folder, traces)
	if err == nil || !strings.Contains(err.Error(), "trace_rank_0") {
		t.Errorf("WriteSnapshots in a folder of dumps = %v; want an error that names a file in it", err)
	}
}

func TestInputsAreNotReplaced(t *testing.T) {
	folder := traceRun(t, 1, 4, 0)
	path := filepath.Join(folder, "trace_rank_0")
	if err := os.Rename(filepath.Join(folder, trace.FileName(0)), path); err != nil {
		t.Fatal(err)
	}

	if _, _, err := WriteFlightRecorder(folder, open(t, folder)); err == nil {
		t.Error("WriteFlightRecorder in the folder of the trace succeeded; want an error")
	}

	open(t, folder)
}

func TestTwoTracesOfOneRankAreRefused(t *testing.T) {
	a, b := traceRun(t, 2, 4, 0), traceRun(t, 2, 4, 0)
	_, err := Open([]string{a, b})
	if err == nil || !strings.Contains(err.Error(), "single world of a single run") {
		t.Errorf("Open of two runs = %v; want an error", err)
	}

	if err := os.Remove(filepath.Join(b, trace.FileName(0))); err != nil {
		t.Fatal(err)
	}

	one := traceRun(t, 1, 4, 0)
	_, err = Open([]string{b, one})
	if err == nil || !strings.Contains(err.Error(), "world of 2 ranks") {
		t.Errorf("Open of runs with 2 ranks and 1 rank = %v; want an error", err)
	}
}

// TestRingOverflow exports traces whose oldest events have been overwritten. Rank 1 has lost more
// events than rank 0, but the dumps must begin with the same call.
func TestRingOverflow(t *testing.T) {
	folder := t.TempDir()
	call := &event.Call{
		Operation: "Barrier", Path: "plain", Root: -1, SendSegment: -1, RecvSegment: -1,
	}
	for rank := range 2 {
		w, err := trace.Create(folder, trace.Options{Rank: rank, Size: 2, Records: 64})
		if err != nil {
			t.Fatal(err)
		}

		s := w.NewSource()
		for n := range 200 {
			recordStep(s, rank, n, call)
			for range 3 * rank {
				s.Record(&event.Event{Kind: event.KindNote, Segment: -1})
			}
		}
	}

	traces := open(t, folder)
	if traces.areComplete() || len(traces.Notes) != 3 {
		t.Errorf("notes = %q; want two about lost events and one about a clock", traces.Notes)
	}

	dumps := filepath.Join(t.TempDir(), "dumps")
	calls, _, err := WriteFlightRecorder(dumps, traces)
	if err != nil || calls == 0 || calls%2 != 0 {
		t.Fatalf("WriteFlightRecorder = %d calls, %v; want the same number on both ranks", calls, err)
	}

	agree(t, dumps, calls/2)
}

// TestCallsThatCannotBeNumberedAreLeftOut exports a group with Sends. Only rank 1 has lost events,
// so its number of earlier collectives is unknown.
func TestCallsThatCannotBeNumberedAreLeftOut(t *testing.T) {
	folder := t.TempDir()
	for rank, records := range []int{4096, 64} {
		w, err := trace.Create(folder, trace.Options{Rank: rank, Size: 2, Records: records})
		if err != nil {
			t.Fatal(err)
		}

		s := w.NewSource()
		for n := range 200 {
			operation := []string{"AllReduce", "Send"}[n%2]
			s.Record(&event.Event{
				Kind: event.KindCollective, Group: worldID, Number: uint64(n), Segment: -1,
				Call: &event.Call{
					Operation: operation, DataType: "float32", Count: 8, Path: "plain", Root: n%2 - 1,
					SendSegment: -1, RecvSegment: -1,
				},
			})
		}
	}

	traces := open(t, folder)
	hasNote := slices.ContainsFunc(traces.Notes, func(note string) bool {
		return strings.Contains(note, "group world: a Flight Recorder dump has no calls")
	})
	calls, _, err := WriteFlightRecorder(filepath.Join(t.TempDir(), "dumps"), traces)
	if err != nil || calls != 0 || !hasNote {
		t.Errorf("WriteFlightRecorder = %d calls, %v; notes = %q; want no calls, and a note about that",
			calls, err, traces.Notes)
	}
}

// FuzzWriters checks that no writer fails on any trace that can be parsed.
func FuzzWriters(f *testing.F) {
	b, err := os.ReadFile(filepath.Join(traceRun(f, 1, 2, 0), trace.FileName(0)))
	if err != nil {
		f.Fatal(err)
	}

	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := trace.Parse(b)
		if err != nil || l.Rank >= l.Size || l.Size > 1<<10 {
			return
		}

		traces := &Traces{groups: map[string]*group{}, ranks: []rankTrace{{rank: l.Rank}}}
		traces.addGroups(l)
		_ = measureClocks(traces.ranks, []clockSamples{sampleClock(l, byEvent)})
		d := flightWriter{traces: traces, log: l, callCounts: map[string]uint64{}}
		s := snapshotWriter{pickler: newPickler(io.Discard), pools: newPoolStates()}
		for name, err := range map[string]error{
			"chrome": writeChrome(io.Discard, l), "flight": d.write(io.Discard), "snapshot": s.write(l),
		} {
			if err != nil {
				t.Errorf("%s = %v; want no error", name, err)
			}
		}
	})
}
