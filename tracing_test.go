package symmem_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"symmem"
	"symmem/event"
	"symmem/trace"
)

func readTrace(t *testing.T, folder string, rank int) *trace.Log {
	t.Helper()
	f, err := os.Open(filepath.Join(folder, trace.FileName(rank)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l, err := trace.Read(f)
	if err != nil {
		t.Fatal(err)
	}

	return l
}

// runTraced opens a world of one rank with the options, and causes at least one event of each kind
// that a trace records.
func runTraced(t *testing.T, o symmem.Options) {
	t.Helper()
	rt := openAloneWith(t, o)
	p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
	if err != nil {
		t.Fatal(err)
	}

	b, err := p.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}

	m := b.Memory()
	err = rt.World().AllReduce(t.Context(), m, m, 16, symmem.Float32, symmem.Sum, nil)
	if err != nil {
		t.Fatal(err)
	}

	if err := b.Free(); err != nil {
		t.Fatal(err)
	}

	if err := rt.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestTraceMatchesOnEvent checks that a trace has the same events as Options.OnEvent. It describes
// calls in a different way.
func TestTraceMatchesOnEvent(t *testing.T) {
	folder := t.TempDir()
	var want []event.Event
	runTraced(t, symmem.Options{
		Trace: folder, CallSites: true, OnEvent: func(e *event.Event) { want = append(want, *e) },
	})
	var got []event.Event
	records := readTrace(t, folder, 0).Records
	for _, r := range records {
		got = append(got, r.Event)
	}

	for i := range want {
		if c := want[i].Call; c != nil {
			want[i].Call, want[i].Segment = nil, -1 // as in events of traces
			hasCall := slices.ContainsFunc(records, func(r trace.Record) bool {
				return r.Digest == c.Digest && r.Bytes == c.Bytes && r.Call != ""
			})
			if !hasCall {
				t.Errorf("the trace has no record of the call %v", c)
			}
		}

		if !slices.Contains(got, want[i]) {
			t.Errorf("the trace has no event %+v", want[i])
		}
	}

	if len(got) != len(want) || len(want) < 5 {
		t.Errorf("the trace has %d events and OnEvent got %d; want the same number, at least 5",
			len(got), len(want))
	}
}

func TestTraceWithoutOnEvent(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "new")
	t.Setenv("SYMMEM_TRACE", folder)
	runTraced(t, symmem.Options{})
	kinds := map[event.Kind]int{}
	for _, r := range readTrace(t, folder, 0).Records {
		kinds[r.Kind]++
	}

	for _, k := range []event.Kind{
		event.KindSegment, event.KindAlloc, event.KindFree, event.KindCollective,
	} {
		if kinds[k] == 0 {
			t.Errorf("the trace has no event of kind %v; its numbers of events by kind are %v", k, kinds)
		}
	}
}

// openTraced opens a world of one rank with a trace, and allocates a buffer of 4096 bytes.
func openTraced(t *testing.T, folder string) (*symmem.Runtime, symmem.Buffer) {
	t.Helper()
	rt := openAloneWith(t, symmem.Options{Trace: folder})
	p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
	if err != nil {
		t.Fatal(err)
	}

	b, err := p.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}

	return rt, b
}

// TestCloseUnmapsTrace checks that Runtime.Close unmaps the trace's file, and that a later Free
// succeeds but is not recorded.
func TestCloseUnmapsTrace(t *testing.T) {
	folder := t.TempDir()
	rt, b := openTraced(t, folder)
	if err := rt.Close(); err != nil {
		t.Fatal(err)
	}

	before := readTrace(t, folder, 0)
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil || strings.Contains(string(maps), folder) {
		t.Errorf("the trace is still mapped after Close, or the mappings cannot be read (%v)", err)
	}

	if err := b.Free(); err != nil {
		t.Errorf("Free after Close = %v; want no error", err)
	}

	if after := readTrace(t, folder, 0); len(after.Records) != len(before.Records) {
		t.Errorf("the trace has %d records after a Free; want %d", len(after.Records),
			len(before.Records))
	}
}

func TestTracedCallsAllocateNothing(t *testing.T) {
	rt := openAloneWith(t, symmem.Options{Trace: t.TempDir()})
	p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
	if err != nil {
		t.Fatal(err)
	}

	b, err := p.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}

	m, fewest := b.Memory(), math.Inf(1)
	for range 20 { // other goroutines may allocate during a batch
		fewest = min(fewest, testing.AllocsPerRun(100, func() {
			x, err := p.Alloc(4096)
			err = errors.Join(err, x.Free(),
				rt.World().AllReduce(t.Context(), m, m, 16, symmem.Float32, symmem.Sum, nil))
			if err != nil {
				t.Fatal(err)
			}
		}))
	}

	if fewest != 0 {
		t.Errorf("Alloc, Free and AllReduce allocate %v times with a trace; want 0", fewest)
	}
}

func TestTraceOfListWithoutOnEvent(t *testing.T) {
	folder := t.TempDir()
	rt, b := openTraced(t, folder)
	call := symmem.Call{
		Operation: symmem.OpAllReduce, Type: symmem.Uint8, Op: symmem.Sum, Count: 64,
		Send: b.Memory(), Recv: b.Memory(), Wait: true,
	}
	call.More = []symmem.Call{call}
	if err := rt.Interop().Do(t.Context(), rt.World(), call, nil); err != nil {
		t.Fatal(err)
	}

	calls := 0
	for _, r := range readTrace(t, folder, 0).Records {
		if r.Kind == event.KindCollective {
			calls++
		}
	}

	if calls != 2 {
		t.Errorf("the trace has %d collectives; want 2", calls)
	}
}

// TestTraceOfEveryOperation checks that traces contain rooted operations, operations with parts of
// different sizes, and the calls of a list, each with its path and size.
func TestTraceOfEveryOperation(t *testing.T) {
	folder := t.TempDir()
	const count, root = 16, 1
	runRanks(t, 2, symmem.Options{Trace: folder}, func(r *rank) {
		p, err := r.NewPool(symmem.PoolOptions{Domain: r.World()})
		r.ok(err)
		b, err := p.Alloc(4 * count * 4)
		r.ok(err)
		send, err := b.Memory().Slice(0, 2*count*4)
		r.ok(err)
		recv, err := b.Memory().Slice(2*count*4, 2*count*4)
		r.ok(err)
		g, ctx, uneven := r.World(), r.ctx, []int64{count - 3, 3}
		r.ok(g.Gather(ctx, send, recv, count, symmem.Float32, root, nil))
		r.ok(g.Scatter(ctx, send, recv, count, symmem.Float32, root, nil))
		r.ok(g.Reduce(ctx, send, recv, count, symmem.Float32, symmem.Sum, root, nil))
		r.ok(g.AllGatherV(ctx, send, recv, uneven, symmem.Float32, nil))
		r.ok(g.ReduceScatterV(ctx, send, recv, uneven, symmem.Float32, symmem.Sum, nil))
		call := symmem.Call{
			Operation: symmem.OpAllGather, Type: symmem.Float32, Count: count, Send: send, Recv: recv,
		}
		second := call
		second.Operation, second.Op = symmem.OpAllReduce, symmem.Sum
		call.More = []symmem.Call{second}
		r.ok(r.Interop().Do(ctx, g, call, nil))
		r.ok(r.DefaultStream().Synchronize(ctx))
	})
	want := []struct {
		operation string
		bytes     [2]int64 // size of the larger buffer on each rank
	}{
		{"Gather", [2]int64{count * 4, 2 * count * 4}},
		{"Scatter", [2]int64{count * 4, 2 * count * 4}},
		{"Reduce", [2]int64{count * 4, count * 4}},
		{"AllGatherV", [2]int64{count * 4, count * 4}},
		{"ReduceScatterV", [2]int64{count * 4, count * 4}},
		{"AllGather", [2]int64{2 * count * 4, 2 * count * 4}},
		{"AllReduce", [2]int64{count * 4, count * 4}},
	}
	for r := range 2 {
		var got []trace.Record
		for _, e := range readTrace(t, folder, r).Records {
			if e.Kind == event.KindCollective {
				got = append(got, e)
			}
		}

		if len(got) != len(want) {
			t.Fatalf("the trace of rank %d has %d calls; want %d", r, len(got), len(want))
		}

		for i, w := range want {
			e := &got[i]
			isDescribed := strings.HasPrefix(e.Call, w.operation+" ") &&
				strings.Contains(e.Call, ", path ")
			if !isDescribed || e.Bytes != w.bytes[r] {
				t.Errorf("call %d of rank %d = %q with %d bytes; want %s with a path and %d bytes",
					i, r, e.Call, e.Bytes, w.operation, w.bytes[r])
			}
		}
	}
}

func TestUnusableTraceFolderFailsOpen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	_, err := symmem.Open(t.Context(), symmem.Options{
		Rank: 0, Size: 1, Backend: "host", Trace: file,
	})
	if err == nil {
		t.Error("Open with a file as Options.Trace succeeded; want an error")
	}
}
