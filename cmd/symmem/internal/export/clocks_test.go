package export

import (
	"testing"
	"time"

	"symmem/event"
	"symmem/trace"
)

func TestClockOffsetIsMeasured(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Hour, -3 * time.Minute} {
		clocks := open(t, traceRun(t, 3, 50, ahead)).Clocks
		if len(clocks) != 3 || clocks[1].AppliedOffset != 0 {
			t.Fatalf("clocks = %+v; want 3, the second without an offset", clocks)
		}

		c := clocks[2]
		if off := time.Duration(c.AppliedOffset) - ahead; c.CallCount != 50 || off.Abs() > time.Second {
			t.Errorf("ahead by %v: clock = %+v; want that offset from 50 calls", ahead, c)
		}
	}
}

// TestClockIsComparedThroughAnotherRank compares the clocks of ranks that have no call in common.
func TestClockIsComparedThroughAnotherRank(t *testing.T) {
	call := func(name string, times ...int64) clockSamples {
		s := clockSamples{}
		for n, at := range times {
			s[callKey{value: valueKey{group: "g", name: name}, number: uint64(n)}] = at
		}

		return s
	}
	middle := call("a", 1e9, 2e9, 3e9)
	for k, at := range call("b", 5e9, 6e9, 7e9) {
		middle[k] = at
	}

	ranks := []rankTrace{{rank: 0}, {rank: 4}, {rank: 7}, {rank: 9}}
	clocks := measureClocks(ranks, []clockSamples{
		call("a", 0, 1e9, 2e9), call("b", 3e9, 4e9, 5e9), middle, call("c", 1),
	})
	want := []Clock{
		{Rank: 0, IsReference: true},
		{Rank: 4, CallCount: 3, MeasuredOffset: -1e9, AppliedOffset: -1e9},
		{Rank: 7, CallCount: 3, MeasuredOffset: 1e9, AppliedOffset: 1e9},
		{Rank: 9},
	}
	for i, c := range clocks {
		if c != want[i] {
			t.Errorf("clock %d = %+v; want %+v", i, c, want[i])
		}
	}
}

func TestRanksSampleTheSameCalls(t *testing.T) {
	long := &trace.Log{}
	for n := range 10 * maxSamples {
		long.Records = append(long.Records, trace.Record{
			Event: event.Event{
				Kind: event.KindInteger, Group: worldID, Name: "n", Number: uint64(2*n + 1),
			},
			Time: time.Unix(int64(n), 0),
		})
	}

	short := &trace.Log{Records: long.Records[:100]}
	for _, by := range []numbering{byCount, byEvent} {
		a, b := sampleClock(long, by), sampleClock(short, by)
		if len(a) > 2*maxSamples || len(b) != 100 {
			t.Fatalf("got %d and %d samples; want at most %d, and 100", len(a), len(b), 2*maxSamples)
		}

		if _, _, calls := compareSamples(a, b); calls < 5 {
			t.Errorf("got %d samples of the same calls; want 5 or more", calls)
		}
	}
}

// TestClockIsMeasuredAfterOneRankLostEvents compares a complete trace with one that has lost its
// oldest events. Each step takes a millisecond, so different steps would give different times.
func TestClockIsMeasuredAfterOneRankLostEvents(t *testing.T) {
	folder := t.TempDir()
	var sources []*trace.Source
	for rank, records := range []int{4096, 64} {
		w, err := trace.Create(folder, trace.Options{Rank: rank, Size: 2, Records: records})
		if err != nil {
			t.Fatal(err)
		}

		sources = append(sources, w.NewSource())
	}

	call := &event.Call{
		Operation: "Barrier", Path: "plain", Root: -1, SendSegment: -1, RecvSegment: -1,
	}
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for n := range 30 {
		<-ticker.C
		for rank, s := range sources {
			recordStep(s, rank, n, call)
		}
	}

	traces := open(t, folder)
	c := traces.Clocks[1]
	if traces.areComplete() || c.CallCount == 0 {
		t.Fatalf("clock = %+v of traces without lost events: %v; want calls in common, and lost events",
			c, traces.areComplete())
	}

	if off := time.Duration(c.MeasuredOffset); off.Abs() > 5*time.Millisecond {
		t.Errorf("measured offset = %v in %d calls; want about 0", off, c.CallCount)
	}
}
