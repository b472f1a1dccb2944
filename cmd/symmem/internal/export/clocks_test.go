package export

import (
	"maps"
	"testing"
	"time"

	"symmem/event"
	"symmem/trace"
)

func TestClockOffsetIsMeasured(t *testing.T) {
	const ranks = 3 // the clock of the last rank is ahead
	const calls = 50
	const tolerance = time.Second // far below the tested offsets
	for _, ahead := range []time.Duration{0, time.Hour, -3 * time.Minute} {
		clocks := open(t, traceRun(t, ranks, calls, ahead)).Clocks
		if len(clocks) != ranks || clocks[1].AppliedOffset != 0 {
			t.Fatalf("clocks = %+v; want %d, the second without an offset", clocks, ranks)
		}

		last := clocks[2]
		deviation := time.Duration(last.AppliedOffset) - ahead
		if last.CallCount != calls || deviation.Abs() > tolerance {
			t.Errorf("ahead by %v: clock = %+v; want this offset from %d calls", ahead, last, calls)
		}
	}
}

// The clocks of ranks 0 and 4, which have no common calls, are compared through rank 7. Rank 9
// has no common calls with any rank.
func TestClockIsComparedThroughAnotherRank(t *testing.T) {
	samplesOf := func(name string, times ...int64) clockSamples {
		s := clockSamples{}
		for n, sample := range times {
			s[callKey{value: valueKey{group: "g", name: name}, number: uint64(n)}] = sample
		}

		return s
	}
	rank0 := samplesOf("a", 0, 1e9, 2e9)
	rank4 := samplesOf("b", 3e9, 4e9, 5e9)
	rank7 := samplesOf("a", 1e9, 2e9, 3e9)
	maps.Copy(rank7, samplesOf("b", 5e9, 6e9, 7e9))
	rank9 := samplesOf("c", 1)
	ranks := []rankTrace{{rank: 0}, {rank: 4}, {rank: 7}, {rank: 9}}
	clocks := measureClocks(ranks, []clockSamples{rank0, rank4, rank7, rank9})
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
	const longCalls = 10 * maxSamples
	long := &trace.Log{}
	for n := range longCalls {
		oddNumber := uint64(2*n + 1)
		long.Records = append(long.Records, trace.Record{
			Event: event.Event{
				Kind: event.KindInteger, Group: worldID, Name: "n", Number: oddNumber,
			},
			Time: time.Unix(int64(n), 0),
		})
	}

	const shortCalls = 100
	short := &trace.Log{Records: long.Records[:shortCalls]}
	for _, by := range []numbering{byCount, byEvent} {
		longSamples, shortSamples := sampleClock(long, by), sampleClock(short, by)
		if len(longSamples) > 2*maxSamples || len(shortSamples) != shortCalls {
			t.Fatalf("got %d and %d samples; want at most %d and exactly %d",
				len(longSamples), len(shortSamples), 2*maxSamples, shortCalls)
		}

		const minCommonCalls = 5 // of about 100/16, because the long trace samples 1 call in 16
		if _, _, calls := compareSamples(longSamples, shortSamples); calls < minCommonCalls {
			t.Errorf("got %d samples of the same calls; want %d or more", calls, minCommonCalls)
		}
	}
}

func TestClockIsMeasuredAfterOneRankLostEvents(t *testing.T) {
	folder := t.TempDir()
	var sources []*trace.Source
	const sufficientRecords, tooFewRecords = 4096, 64
	for rank, records := range []int{sufficientRecords, tooFewRecords} {
		w, err := trace.Create(folder, trace.Options{Rank: rank, Size: 2, Records: records})
		if err != nil {
			t.Fatal(err)
		}

		sources = append(sources, w.NewSource())
	}

	call := &event.Call{
		Operation: "Barrier", Path: "plain", Root: -1, SendSegment: -1, RecvSegment: -1,
	}
	const steps = 30                           // produce more than tooFewRecords
	ticker := time.NewTicker(time.Millisecond) // gives steps different times
	defer ticker.Stop()
	for n := range steps {
		<-ticker.C
		for rank, s := range sources {
			recordStep(s, rank, n, call)
		}
	}

	traces := open(t, folder)
	clock := traces.Clocks[1]
	if traces.areComplete() || clock.CallCount == 0 {
		t.Fatalf("traces are complete: %v, clock = %+v; want lost events and common calls",
			traces.areComplete(), clock)
	}

	const tolerance = 5 * time.Millisecond
	if offset := time.Duration(clock.MeasuredOffset); offset.Abs() > tolerance {
		t.Errorf("measured offset = %v in %d calls; want about 0", offset, clock.CallCount)
	}
}
