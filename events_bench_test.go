package symmem_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"symmem"
	"symmem/event"
)

// Each call of symmem, such as an allocation, causes events. A program can get them through a hook,
// Options.OnEvent, or have them written to a trace. These benchmarks measure by how much a hook or
// a trace slows calls down.

// newEventHooks returns the values of Options.OnEvent to compare, by the name of a benchmark: none
// and a cheap hook. The hook reads the event, so that the compiler cannot drop it.
func newEventHooks() map[string]func(*event.Event) {
	var sum uint64
	return map[string]func(*event.Event){
		"without": nil,
		"with":    func(e *event.Event) { sum += e.Number },
	}
}

// BenchmarkAllocEvents measures an allocation and a free, without and with a hook for their events.
func BenchmarkAllocEvents(b *testing.B) {
	for name, hook := range newEventHooks() {
		b.Run(name, func(b *testing.B) {
			rt := openAloneWith(b, symmem.Options{OnEvent: hook})
			p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
			if err != nil {
				b.Fatal(err)
			}

			b.ReportAllocs()
			for b.Loop() {
				buffer, err := p.Alloc(4096)
				if err != nil {
					b.Fatal(err)
				}

				if err := buffer.Free(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCollectiveEvents measures a small all-reduce, without and with a hook for its event.
func BenchmarkCollectiveEvents(b *testing.B) {
	for name, hook := range newEventHooks() {
		b.Run(name, func(b *testing.B) {
			rt := openAloneWith(b, symmem.Options{OnEvent: hook})
			p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
			if err != nil {
				b.Fatal(err)
			}

			buffer, err := p.Alloc(4096)
			if err != nil {
				b.Fatal(err)
			}

			m := buffer.Memory()
			b.ReportAllocs()
			for b.Loop() {
				err := rt.World().AllReduce(
					b.Context(), m, m, smallCount, symmem.Float32, symmem.Sum, nil)
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// smallCount is the number of elements of an all-reduce. They take little time to add.
const smallCount = 16

// BenchmarkTrace measures the time that a trace adds to an allocation with its free, and to a
// collective.
func BenchmarkTrace(b *testing.B) {
	withoutTrace := newTraceBench(b, symmem.Options{})
	withTrace := newTraceBench(b, symmem.Options{Trace: b.TempDir()})
	b.Run("alloc", func(b *testing.B) {
		const eventsPerCall = 2 // one of the allocation and one of the free
		compareBatches(b, withoutTrace, withTrace, eventsPerCall, (*traceBench).allocAndFree)
	})
	b.Run("collective", func(b *testing.B) {
		const eventsPerCall = 1
		compareBatches(b, withoutTrace, withTrace, eventsPerCall, (*traceBench).allReduce)
	})
}

// compareBatches alternates batches of calls without and with a trace. It reports how much larger
// the minimum and the median time of a batch are with a trace. The minimum matters, because other
// programs slow most batches down. Each call causes eventsPerCall events.
func compareBatches(
	b *testing.B, withoutTrace, withTrace *traceBench, eventsPerCall float64,
	call func(*traceBench) error,
) {
	const (
		calls = 512 // in a batch: it takes much longer than reading the clock
		pairs = 8   // of batches in an iteration, so that one iteration already gives a median
	)
	var untracedTimes, tracedTimes []float64 // mean ns of a call, for each batch
	for b.Loop() {
		for range pairs {
			untracedTimes = append(untracedTimes, timeCalls(b, calls, withoutTrace, call))
			tracedTimes = append(tracedTimes, timeCalls(b, calls, withTrace, call))
		}
	}

	slices.Sort(untracedTimes)
	slices.Sort(tracedTimes)
	middle := len(tracedTimes) / 2
	addedMin := tracedTimes[0] - untracedTimes[0]
	addedMedian := tracedTimes[middle] - untracedTimes[middle]
	b.ReportMetric(addedMin, "ns-added-min")
	b.ReportMetric(addedMin/eventsPerCall, "ns-added-min/event")
	b.ReportMetric(addedMedian/eventsPerCall, "ns-added-median/event")
	b.ReportMetric(untracedTimes[0], "ns-without-min")
}

// timeCalls makes calls and returns their mean time in nanoseconds. It fails the benchmark if a
// call fails.
func timeCalls(
	b *testing.B, calls int, t *traceBench, call func(*traceBench) error,
) float64 {
	begin := time.Now()
	for range calls {
		if err := call(t); err != nil {
			b.Fatal(err)
		}
	}

	return float64(time.Since(begin)) / float64(calls)
}

// traceBench makes the calls that BenchmarkTrace measures.
type traceBench struct {
	ctx    context.Context
	group  *symmem.Group
	pool   *symmem.Pool
	memory symmem.Memory // of the collectives
}

// newTraceBench opens a world of one rank and allocates the memory for its collectives. The world
// closes at the end of the benchmark.
func newTraceBench(b *testing.B, o symmem.Options) *traceBench {
	b.Helper()
	rt := openAloneWith(b, o)
	p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
	if err != nil {
		b.Fatal(err)
	}

	buffer, err := p.Alloc(4096)
	if err != nil {
		b.Fatal(err)
	}

	return &traceBench{
		ctx: b.Context(), group: rt.World(), pool: p, memory: buffer.Memory(),
	}
}

func (t *traceBench) allocAndFree() error {
	buffer, err := t.pool.Alloc(4096)
	if err != nil {
		return err
	}

	return buffer.Free()
}

func (t *traceBench) allReduce() error {
	return t.group.AllReduce(
		t.ctx, t.memory, t.memory, smallCount, symmem.Float32, symmem.Sum, nil)
}
