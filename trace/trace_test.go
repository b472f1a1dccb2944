package trace_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"symmem/event"
	"symmem/trace"
)

// childFolder names the variable that makes the test binary write a trace until it is killed.
const childFolder = "TRACE_TEST_FOLDER"

func TestMain(m *testing.M) {
	if folder := os.Getenv(childFolder); folder != "" {
		w, err := trace.Create(folder, trace.Options{Rank: 1, Size: 2, Records: 64})
		if err != nil {
			panic(err)
		}
		s := w.NewSource()
		for n := uint64(0); ; n++ {
			s.Record(&event.Event{Kind: event.KindAlloc, Number: n, Size: 512, Requested: int64(n)})
			if n == 1000 {
				os.Stdout.WriteString("written\n")
			}
		}
	}
	os.Exit(m.Run())
}

func create(t *testing.T, folder string, o trace.Options) *trace.Source {
	t.Helper()
	w, err := trace.Create(folder, o)
	if err != nil {
		t.Fatal(err)
	}
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
	if l.Rank != 3 || l.Size != 4 || l.Process != os.Getpid() || l.Missing != 0 ||
		len(l.Records) != 5 {
		t.Fatalf("log = %+v; want 5 records of rank 3 of 4", l)
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
	for n := range uint64(1000) {
		s.Record(&event.Event{Kind: event.KindFree, Number: n})
	}
	l := read(t, folder, 0)
	if l.Missing != 936 || len(l.Records) != 64 || l.Records[0].Number != 936 {
		t.Errorf("missing %d, %d records; want 936 and 64", l.Missing, len(l.Records))
	}
}

func TestKilledWriter(t *testing.T) {
	folder := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childFolder+"="+folder)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	l := read(t, folder, 1)
	if l.Missing < 900 || len(l.Records)+l.Torn != 64 || l.Torn > 1 {
		t.Fatalf("missing %d, %d records, %d torn; want 64 in all", l.Missing, len(l.Records), l.Torn)
	}
	for _, r := range l.Records {
		if r.Requested != int64(r.Number) {
			t.Errorf("record %d has %d", r.Number, r.Requested)
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
		t.Errorf("the target of the link = %q; want it unchanged", b)
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

// TestTraceOfEarlierProcessIsKept creates a trace where an earlier process with the same process id
// has left one, as happens in containers.
func TestTraceOfEarlierProcessIsKept(t *testing.T) {
	folder, earlier := t.TempDir(), t.TempDir()
	create(t, earlier, trace.Options{Rank: 1, Size: 2, Records: 1})
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
		t.Errorf("the earlier trace: %v; want it under .old", err)
	}
}

// TestTracesOfSeveralWorlds creates traces of the same rank of several worlds at the same time.
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

// TestNamesBeyondTheirBits records more texts than the number of a name can express.
func TestNamesBeyondTheirBits(t *testing.T) {
	folder := t.TempDir()
	s := create(t, folder, trace.Options{Size: 1, Records: 1 << 18})
	for n := range 1<<16 + 10 {
		s.Record(&event.Event{Kind: event.KindRegister, Name: strconv.Itoa(n), Number: uint64(n)})
	}
	for _, r := range read(t, folder, 0).Records {
		if r.Name != "?" && r.Name != strconv.FormatUint(r.Number, 10) {
			t.Fatalf("event %d has the name %s; want %d or ?", r.Number, r.Name, r.Number)
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
		t.Errorf("lost %d texts; want some", l.LostTexts)
	}
}

// FuzzParse checks that no file makes Parse fail otherwise than with an error.
func FuzzParse(f *testing.F) {
	folder := f.TempDir()
	w, err := trace.Create(folder, trace.Options{Size: 1, Records: 2})
	if err != nil {
		f.Fatal(err)
	}
	w.NewSource().Record(&event.Event{Kind: event.KindAlloc, Group: "world", Size: 512})
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
	})
}

func BenchmarkRecord(b *testing.B) {
	w, err := trace.Create(b.TempDir(), trace.Options{Size: 1})
	if err != nil {
		b.Fatal(err)
	}
	s := w.NewSource()
	e := event.Event{Kind: event.KindAlloc, Group: "world", Size: 4096, Requested: 4000}
	b.ReportAllocs()
	for b.Loop() {
		e.Number++
		s.Record(&e)
	}
}
