package symmem_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"symmem"
	"symmem/event"
)

func BenchmarkAllocEvents(b *testing.B) {
	var sum uint64
	for name, hook := range map[string]func(*event.Event){
		"without": nil, "with": func(e *event.Event) { sum += e.Number },
	} {
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
	var sum uint64
	for name, hook := range map[string]func(*event.Event){
		"without": nil, "with": func(e *event.Event) { sum += e.Number },
	} {
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
				err := rt.World().AllReduce(b.Context(), m, m, 16, symmem.Float32, symmem.Sum, nil)
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkTrace measures the time that a trace adds to an allocation, a free and a collective.
func BenchmarkTrace(b *testing.B) {
	withoutTrace := newTraceBench(b, symmem.Options{})
	withTrace := newTraceBench(b, symmem.Options{Trace: b.TempDir()})
	const allocEvents, collectiveEvents = 2, 1 // per call of the benchmarked function
	b.Run("alloc", func(b *testing.B) {
		compareBatches(b, withoutTrace, withTrace, allocEvents, (*traceBench).allocAndFree)
	})
	b.Run("collective", func(b *testing.B) {
		compareBatches(b, withoutTrace, withTrace, collectiveEvents, (*traceBench).allReduce)
	})
}

// compareBatches alternates batches of calls without and with a trace. It reports by how much the
// trace increases the minimum and the median of the times of the batches. The minimum matters,
// because other programs slow most batches down. Each call causes the given number of events.
func compareBatches(
	b *testing.B, withoutTrace, withTrace *traceBench, events float64, call func(*traceBench) error,
) {
	const calls = 512 // per batch
	var untracedTimes, tracedTimes []float64
	for b.Loop() {
		for range 8 {
			untracedTimes = append(untracedTimes, timeCalls(b, calls, withoutTrace, call))
			tracedTimes = append(tracedTimes, timeCalls(b, calls, withTrace, call))
		}
	}
	slices.Sort(untracedTimes)
	slices.Sort(tracedTimes)
	middle := len(tracedTimes) / 2
	b.ReportMetric(tracedTimes[0]-untracedTimes[0], "ns-added-min")
	b.ReportMetric((tracedTimes[0]-untracedTimes[0])/events, "ns-added-min/event")
	b.ReportMetric((tracedTimes[middle]-untracedTimes[middle])/events, "ns-added-median/event")
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
	memory symmem.Memory
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
	return &traceBench{b.Context(), rt.World(), p, buffer.Memory()}
}

func (t *traceBench) allocAndFree() error {
	buffer, err := t.pool.Alloc(4096)
	if err != nil {
		return err
	}
	return buffer.Free()
}

func (t *traceBench) allReduce() error {
	return t.group.AllReduce(t.ctx, t.memory, t.memory, 16, symmem.Float32, symmem.Sum, nil)
}
