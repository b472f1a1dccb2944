package trace_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"symmem/event"
	"symmem/internal/leaktest"
	"symmem/internal/sys"
	"symmem/trace"
)

// childFolder is an environment variable with the path of a folder. If it is set, the test
// binary writes a trace to that folder until the process is killed.
const childFolder = "TRACE_TEST_FOLDER"

func TestMain(m *testing.M) {
	if folder := os.Getenv(childFolder); folder != "" {
		w, err := trace.Create(folder, trace.Options{Rank: 1, Size: 2, Records: 64})
		if err != nil {
			panic(err)
		}

		s := w.NewSource()
		for n := uint64(0); ; n++ {
			s.Record(&event.Event{Kind: event.KindAlloc, Number: n, Size: 1 << 30, Requested: int64(n)})
			if n == 1000 {
				os.Stdout.WriteString("written\n")
			}
		}
	}

	os.Exit(leaktest.Watch(m).Run())
}

// create creates a trace that is closed at the end of the test.
func create(tb testing.TB, folder string, o trace.Options) *trace.Source {
	tb.Helper()
	w, err := trace.Create(folder, o)
	if err != nil {
		tb.Fatal(err)
	}

	tb.Cleanup(func() {
		if err := w.Close(); err != nil {
			tb.Errorf("Close = %v; want no error", err)
		}
	})
	return w.NewSource()
}

func read(t *testing.T, folder string, rank int) *trace.Log {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(folder, trace.FileName(rank)))
	if err != nil {
		t.Fatal(err)
	}

	l, err := trace.Read(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}

	return l
}

func TestRoundTrip(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "new")
	s := create(t, folder, trace.Options{Rank: 3, Size: 4, Records: 100})
	events := []event.Event{
		{
			Kind: event.KindAlloc, Number: 7, Group: "world", Pool: 2, Site: "a.go:1",
			Offset: 1 << 40, Size: 1024, Requested: 1000, Stream: 5, Segment: 9, Rank: 3,
		},
		{Kind: event.KindRegister, Group: "world", Name: "tp", Segment: 1, Rank: 3},
		{
			Kind: event.KindInteger, Group: "tp", Operation: "Agree", Name: "batch", Value: -8,
			Collectives: 3, Segment: -1, Rank: 3,
		},
		{Kind: event.KindFault, Group: "tp", Text: "rank 2 was lost", Segment: -1, Rank: 3},
	}
	for i := range events {
		s.Record(&events[i])
	}

	call := &event.Call{
		Operation: "AllReduce", Path: "window", Root: -1, SendSegment: -1, RecvSegment: -1, Ticket: 4,
		Digest: 77, Bytes: 64,
	}
	s.Record(&event.Event{Kind: event.KindCollective, Call: call, Group: "tp"})
	l := read(t, folder, 3)
	host, _ := os.Hostname()
	if l.Rank != 3 || l.Size != 4 || l.Process != os.Getpid() || l.Missing != 0 || l.Host != host ||
		len(l.Records) != 5 {
		t.Fatalf("log = %+v; want 5 records of rank 3 of 4 on %s", l, host)
	}

	for i, want := range events {
		if got := l.Records[i].Event; got != want {
			t.Errorf("event %d = %+v; want %+v", i, got, want)
		}
	}

	got := l.Records[4]
	if got.Call != "AllReduce, path window" || got.Digest != 77 || got.Bytes != 64 ||
		time.Since(got.Time) > time.Hour {
		t.Errorf("call = %+v; want AllReduce with digest 77", got)
	}
}

func TestOldestEventsAreReplaced(t *testing.T) {
	folder := t.TempDir()
	s := create(t, folder, trace.Options{Size: 1, Records: 50})
	for n := range uint64(1600) { // a multiple of the batch size, so that the last batch is full
		s.Record(&event.Event{Kind: event.KindFree, Number: n})
	}

	l := read(t, folder, 0)
	if l.Missing != 1472 || len(l.Records) != 128 || l.Records[0].Number != 1472 {
		t.Errorf("missing %d, %d records; want 1472 and 128", l.Missing, len(l.Records))
	}
}

// startWriter starts a process that writes events of rank 1 until it is killed. It returns once the
// process has written 1,000 events.
func startWriter(t *testing.T, folder string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childFolder+"="+folder)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}

	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = cmd.Process.Kill() })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}

	return cmd
}

func killWriter(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}

	_ = cmd.Wait() // returns an error because the process was killed
}

func TestKilledWriter(t *testing.T) {
	folder := t.TempDir()
	killWriter(t, startWriter(t, folder))
	l := read(t, folder, 1)
	// The process may have been killed after it claimed a batch of 16 records and before it wrote
	// their heads.
	n := len(l.Records) + l.IncompleteRecords
	if l.Missing < 850 || n < 112 || n > 128 || l.IncompleteRecords > 16 {
		t.Fatalf("missing %d, %d records, %d torn; want at least 850, 112 to 128 with the torn, "+
			"and at most 16", l.Missing, len(l.Records), l.IncompleteRecords)
	}

	for _, r := range l.Records {
		if r.Requested != int64(r.Number) {
			t.Errorf("event %d: Requested = %d; want its number", r.Number, r.Requested)
		}
	}
}

func TestCreateFollowsNoLinks(t *testing.T) {
	folder, target := t.TempDir(), filepath.Join(t.TempDir(), "target")
	if err := os.WriteFile(target, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}

	if err := os.Symlink(target, filepath.Join(folder, trace.FileName(0))); err != nil {
		t.Fatal(err)
	}

	create(t, folder, trace.Options{Size: 1, Records: 1})
	if b, _ := os.ReadFile(target); string(b) != "precious" {
		t.Errorf("link target contains %q; want it unchanged", b)
	}

	info, err := os.Lstat(filepath.Join(folder, trace.FileName(0)))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode = %v, %v; want 0600", info.Mode(), err)
	}

	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(folder, link); err != nil {
		t.Fatal(err)
	}

	if _, err := trace.Create(link, trace.Options{Size: 1}); err == nil {
		t.Error("Create in a linked folder succeeded; want an error")
	}
}

// TestTraceOfEarlierProcessIsKept creates a trace in a folder that contains the trace of an earlier
// process with the same process id, as can happen in containers.
func TestTraceOfEarlierProcessIsKept(t *testing.T) {
	folder, earlier := t.TempDir(), t.TempDir()
	w, err := trace.Create(earlier, trace.Options{Rank: 1, Size: 2, Records: 1})
	if err != nil {
		t.Fatal(err)
	}

	if err := w.Close(); err != nil {
		t.Fatal(err)
	}

	path := filepath.Join(folder, trace.FileName(1))
	if err := os.Rename(filepath.Join(earlier, trace.FileName(1)), path); err != nil {
		t.Fatal(err)
	}

	s := create(t, folder, trace.Options{Rank: 1, Size: 2, Records: 1})
	s.Record(&event.Event{Kind: event.KindFree, Number: 5})
	if l := read(t, folder, 1); len(l.Records) != 1 || l.Records[0].Number != 5 {
		t.Errorf("%s has records %v; want event 5", trace.FileName(1), l.Records)
	}

	if _, err := os.Stat(path + ".old"); err != nil {
		t.Errorf("Stat of the earlier trace with suffix .old: %v", err)
	}
}

// TestTracesOfSeveralWorlds creates traces of the same rank in several worlds concurrently.
func TestTracesOfSeveralWorlds(t *testing.T) {
	folder := t.TempDir()
	var group sync.WaitGroup
	for n := range 8 {
		group.Go(func() {
			w, err := trace.Create(folder, trace.Options{Size: 1, Records: 1})
			if err != nil {
				t.Error(err)
				return
			}
			defer w.Close()
			w.NewSource().Record(&event.Event{Kind: event.KindFree, Number: uint64(n)})
		})
	}

	group.Wait()
	names, err := filepath.Glob(filepath.Join(folder, "*rank0.trace"))
	if err != nil || len(names) != 8 {
		t.Errorf("traces = %v, %v; want 8", names, err)
	}
}

func TestCreateRefusesLinkWithSlash(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}

	if _, err := trace.Create(link+"/", trace.Options{Size: 1, Records: 1}); err == nil {
		t.Error("Create in a linked folder with a slash succeeded; want an error")
	}
}

// TestNamesBeyondTheirBits records more names than the bits of a record can number.
func TestNamesBeyondTheirBits(t *testing.T) {
	folder := t.TempDir()
	s := create(t, folder, trace.Options{Size: 1, Records: 1 << 18})
	for n := range 1<<16 + 10 {
		s.Record(&event.Event{Kind: event.KindRegister, Name: strconv.Itoa(n), Number: uint64(n)})
	}

	for _, r := range read(t, folder, 0).Records {
		if r.Name != "?" && r.Name != strconv.FormatUint(r.Number, 10) {
			t.Fatalf("name of event %d = %s; want %d or ?", r.Number, r.Name, r.Number)
		}
	}
}

func TestTextsAreBounded(t *testing.T) {
	folder := t.TempDir()
	s := create(t, folder, trace.Options{Size: 1, Records: 1})
	for n := range 100 {
		s.Record(&event.Event{
			Kind: event.KindFault, Text: string(bytes.Repeat([]byte{byte('a' + n%26)}, 4000+n)),
		})
	}

	if l := read(t, folder, 0); l.LostTexts == 0 || l.Records[0].Text != "" {
		t.Errorf("LostTexts = %d; want more than 0", l.LostTexts)
	}
}

// FuzzParse checks that Parse and Redact either accept a file or return an error that wraps
// ErrFormat.
func FuzzParse(f *testing.F) {
	folder := f.TempDir()
	s := create(f, folder, trace.Options{Size: 1, Records: 2})
	s.Record(&event.Event{Kind: event.KindAlloc, Group: "world", Size: 512})
	b, err := os.ReadFile(filepath.Join(folder, trace.FileName(0)))
	if err != nil {
		f.Fatal(err)
	}

	f.Add(b)
	f.Add(b[:100])
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := trace.Parse(b); err != nil && !errors.Is(err, trace.ErrFormat) {
			t.Errorf("Parse = %v; want ErrFormat", err)
		}

		if err := trace.Redact(bytes.Clone(b)); err != nil && !errors.Is(err, trace.ErrFormat) {
			t.Errorf("Redact = %v; want ErrFormat", err)
		}
	})
}

// TestRecordsKeepAllValues records events with random values and reads them back.
func TestRecordsKeepAllValues(t *testing.T) {
	folder := t.TempDir()
	s := create(t, folder, trace.Options{Size: 1, Records: 1 << 12})
	rapid.Check(t, func(t *rapid.T) {
		wide := rapid.SampledFrom([]int64{
			0, 1, 255, 256, 512, 1 << 20, 1<<32 - 1, 1 << 32, 1<<40 - 256, 1 << 40, 1<<63 - 1, -1, -1 << 63,
		})
		value := func(name string) int64 {
			return rapid.OneOf(wide, rapid.Int64()).Draw(t, name)
		}
		text := rapid.StringN(0, 20, -1)
		want := event.Event{
			Kind:   event.Kind(rapid.IntRange(1, int(event.KindScopeAbandon)).Draw(t, "kind")),
			Number: uint64(value("number")), Stream: uint32(value("stream")),
			Segment: int32(value("segment")), Offset: value("offset"), Size: value("size"),
			Requested: value("requested"), Pool: uint64(value("pool")),
			Group: text.Draw(t, "group"), Site: text.Draw(t, "site"), Name: text.Draw(t, "name"),
		}
		if rapid.Bool().Draw(t, "of a group") {
			want = event.Event{
				Kind: event.KindInteger, Number: want.Number, Stream: want.Stream, Segment: -1,
				Group: want.Group, Site: want.Site, Name: want.Name, Operation: "Max",
				Text: text.Draw(t, "text"), Value: want.Size, Collectives: uint64(want.Offset),
			}
		}

		s.Record(&want)
		b, err := os.ReadFile(filepath.Join(folder, trace.FileName(0)))
		if err != nil {
			t.Fatal(err)
		}

		var got event.Event
		_, err = trace.Scan(bytes.NewReader(b), func(r *trace.Record) { got = r.Event })
		if err != nil || got != want {
			t.Fatalf("read %+v, %v; want %+v", got, err, want)
		}
	})
}

// TestOrderOfPoolsAndGroups records events of two pools and a group in a random order. For each
// pool, a reader must return the events of that pool and of the group in the order in which they
// were recorded.
func TestOrderOfPoolsAndGroups(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	folder := t.TempDir()
	w, err := trace.Create(folder, trace.Options{Size: 1, Records: 1 << 15})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	pools, group := [2]*trace.Source{w.NewSource(), w.NewSource()}, w.NewSource()
	var want [2][]uint64 // numbers of a pool's events, and of the group's plus 1<<40
	quiet, numbers, calls := 0, [2]uint64{}, uint64(0)
	for range 5000 {
		if random.IntN(100) == 0 {
			quiet = random.IntN(4) // some of the sources are idle for a long time
		}

		switch k := random.IntN(4); {
		case k == quiet:
		case k < 2:
			e := event.Event{
				Kind: event.KindAlloc, Group: "world", Pool: uint64(k), Number: numbers[k], Size: 512,
				Stream: uint32(random.IntN(20) / 19 << 20), // a large value needs two records
			}
			pools[k].Record(&e)
			want[k] = append(want[k], numbers[k])
			numbers[k]++
		default:
			group.Record(&event.Event{Kind: event.KindStep, Group: "world", Number: calls})
			for i := range want {
				want[i] = append(want[i], 1<<40+calls)
			}

			calls++
		}
	}

	var got [2][]uint64
	for _, r := range read(t, folder, 0).Records {
		if r.Kind == event.KindAlloc {
			got[r.Pool] = append(got[r.Pool], r.Number)
			continue
		}

		for i := range got {
			got[i] = append(got[i], 1<<40+r.Number)
		}
	}

	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("events of pool %d and the group were not read in the order of recording", i)
		}
	}
}

// TestFolderOfRunningProcess creates a trace in a folder in which another process is writing a
// trace of the same rank.
func TestFolderOfRunningProcess(t *testing.T) {
	folder := t.TempDir()
	cmd := startWriter(t, folder)
	_, err := trace.Create(folder, trace.Options{Rank: 1, Size: 2, Records: 1})
	want := fmt.Sprintf("process %d is writing", cmd.Process.Pid)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Create = %v; want an error with %q", err, want)
	}

	if names, _ := filepath.Glob(filepath.Join(folder, ".*")); len(names) > 0 {
		t.Errorf("temporary files left in the folder: %v", names)
	}

	create(t, folder, trace.Options{Rank: 0, Size: 2, Records: 1}) // another rank
	killWriter(t, cmd)
	create(t, folder, trace.Options{Rank: 1, Size: 2, Records: 1})
}

// TestCreateAwaitsLock creates a trace in place of an older one that stays locked for 50 ms, as it
// may after a kill.
func TestCreateAwaitsLock(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, trace.FileName(1))
	f, err := sys.CreateFile(path, 4096)
	if err != nil {
		t.Fatal(err)
	}

	if err := sys.LockFile(f); err != nil {
		t.Fatal(err)
	}

	timer := time.AfterFunc(50*time.Millisecond, func() { f.Close() })
	defer timer.Stop()
	create(t, folder, trace.Options{Rank: 1, Size: 2, Records: 1})
}

func TestRecordAllocatesNothing(t *testing.T) {
	s := create(t, t.TempDir(), trace.Options{Size: 1, Records: 1 << 10})
	e := event.Event{Kind: event.KindAlloc, Group: "world", Size: 4096, Requested: 4000}
	call := &event.Call{Operation: "AllReduce", Path: "window", Root: -1}
	record := func() {
		e.Number++
		s.Record(&e)
		s.RecordCollective("world", e.Number, call, 0, "")
	}
	record()
	if n := testing.AllocsPerRun(1000, record); n != 0 {
		t.Errorf("Record and Collective allocate %v times; want 0", n)
	}
}

func BenchmarkRecord(b *testing.B) {
	s := create(b, b.TempDir(), trace.Options{Size: 1})
	e := event.Event{Kind: event.KindAlloc, Group: "world", Size: 4096, Requested: 4000}
	b.ReportAllocs()
	for b.Loop() {
		e.Number++
		s.Record(&e)
	}
}
