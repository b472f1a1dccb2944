package symmem_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"symmem"
	"symmem/event"
)

// A program can receive events in Options.OnEvent, or record them in a trace. These benchmarks
// measure the overhead.

const fewElements = 16 // because a long all-reduce would hide the overhead

// newEventHooks maps the names of sub-benchmarks to values of Options.OnEvent.
func newEventHooks() map[string]func(*event.Event) {
	var sum uint64 // makes the hook read the event
	return map[string]func(*event.Event){
		"without": nil,
		"with":    func(e *event.Event) { sum += e.Number },
	}
}

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
					b.Context(), m, m, fewElements, symmem.Float32, symmem.Sum, nil)
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkTrace(b *testing.B) {
	withoutTrace := newTraceBench(b, symmem.Options{})
	withTrace := newTraceBench(b, symmem.Options{Trace: b.TempDir()})
	b.Run("alloc", func(b *testing.B) {
		const eventsPerCall = 2 // Alloc and Free
		compareBatches(b, withoutTrace, withTrace, eventsPerCall, (*traceBench).allocAndFree)
	})
	b.Run("collective", func(b *testing.B) {
		const eventsPerCall = 1
		compareBatches(b, withoutTrace, withTrace, eventsPerCall, (*traceBench).allReduce)
	})
}

// compareBatches alternates between batches of calls without and with a trace. It reports how much
// the trace adds to the median time, and to the minimum, which load on the machine hardly affects.
func compareBatches(
	b *testing.B, withoutTrace, withTrace *traceBench, eventsPerCall float64,
	call func(*traceBench) error,
) {
	const (
		callsPerBatch          = 512 // hides the cost of reading the clock
		batchPairsPerIteration = 8   // enough for a median
	)
	var untracedTimes, tracedTimes []float64 // ns per call, one mean for each batch
	for b.Loop() {
		for range batchPairsPerIteration {
			untracedTimes = append(untracedTimes, timeCalls(b, callsPerBatch, withoutTrace, call))
			tracedTimes = append(tracedTimes, timeCalls(b, callsPerBatch, withTrace, call))
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

type traceBench struct {
	ctx    context.Context
	group  *symmem.Group
	pool   *symmem.Pool
	memory symmem.Memory // for allReduce
}

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
		t.ctx, t.memory, t.memory, fewElements, symmem.Float32, symmem.Sum, nil)
}
