package symmem_test

import (
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"symmem"
	backend "symmem/driver/nccl"
	"symmem/internal/cuda"
	"symmem/internal/nccl"
	"symmem/internal/ranktest"
)

// Limits of a submission with SYMMEM_TEST_BARS, in nanoseconds: over the baseline, and in all on
// the direct path, which NCCL does not have.
const (
	submitOver   = 300
	submitDirect = 5000
)

// submitCalls is the number of calls of a batch, submitCount that of float32 elements of a call.
const (
	submitCalls = 500
	submitCount = 8
)

// BenchmarkSubmit measures what it costs the processor to submit an all-reduce of 8 float32:
// batches of calls through the group, in turns with batches of a baseline on the same communicator
// and stream. The baseline is ncclAllReduce on GPUs and the launch of the same plan on the host.
// Both ranks are goroutines; the times are those of rank 0, without the synchronization after a
// batch.
//
//	go test . -run '^$' -bench Submit -cpu 2
func BenchmarkSubmit(b *testing.B) {
	runtimes, err := symmem.OpenLocal(b.Context(), 2, withBackend(symmem.Options{}))
	if errors.Is(err, symmem.ErrUnsupported) {
		b.Skip("two ranks are needed:", err)
	}
	if err != nil {
		b.Fatal(err)
	}
	ranks := make([]*submitter, len(runtimes))
	for i, rt := range runtimes {
		ranks[i] = &submitter{Runtime: rt}
	}
	each := func(f func(*submitter) error) {
		b.Helper()
		if err := ranktest.Each(len(ranks), func(i int) error {
			err := f(ranks[i])
			if err != nil {
				ranks[i].World().Abort()
			}
			return err
		}); err != nil {
			b.Fatal(err)
		}
	}
	b.Cleanup(func() {
		each(func(s *submitter) error {
			symmem.FreeLive(s.Runtime)
			return s.Close()
		})
	})
	each(func(s *submitter) error { return s.allocate(b) })
	for _, path := range []symmem.PathChoice{
		symmem.PathPlain, symmem.PathWindow, symmem.PathDirect,
	} {
		each(func(s *submitter) error { return s.World().SetPath(b.Context(), path) })
		b.Run("path="+path.String(), func(b *testing.B) {
			each(func(s *submitter) error { return s.prepare(b, path) })
			if !ranks[0].takes {
				b.Skip("the backend has no such path: ", symmem.ErrUnsupported)
			}
			for b.Loop() {
				each(func(s *submitter) error { return s.turn(b) })
			}
			ranks[0].report(b, path)
		})
	}
}

// submitter submits calls as one rank.
type submitter struct {
	*symmem.Runtime
	send, recv [2]symmem.Buffer // in no window, and in windows
	takes      bool             // whether calls take the path that is set
	// group submits a call through the group, base past it; inside runs a batch of base.
	group, base func() error
	inside      func(batch func() error) error
	groupNs     []float64 // of a call, by batch
	baseNs      []float64
}

// allocate makes buffers in windows and buffers in none.
func (s *submitter) allocate(b *testing.B) error {
	for i, o := range []symmem.PoolOptions{{}, {Domain: s.World()}} {
		pool, err := s.NewPool(o)
		if err != nil {
			return err
		}
		for _, buffer := range []*symmem.Buffer{&s.send[i], &s.recv[i]} {
			if *buffer, err = pool.Alloc(4 * submitCount); err != nil {
				return err
			}
		}
		if o.Domain == nil {
			continue
		}
		if err := pool.Register(b.Context(), s.World()); err != nil {
			return err
		}
	}
	return nil
}

// prepare makes one call on a path, so that its plan is kept.
func (s *submitter) prepare(b *testing.B, path symmem.PathChoice) error {
	place := 1
	if path == symmem.PathPlain {
		place = 0
	}
	send, recv := s.send[place].Memory(), s.recv[place].Memory()
	e, err := s.World().Explain(symmem.OpAllReduce, send, recv, submitCount, symmem.Float32)
	if s.takes = err == nil && e.Path == path.String(); !s.takes {
		return nil
	}
	ctx, stream := b.Context(), s.DefaultStream()
	s.groupNs, s.baseNs = nil, nil
	s.group = func() error {
		return s.World().AllReduce(
			ctx, send, recv, submitCount, symmem.Float32, symmem.Sum, stream)
	}
	symmem.ForgetPlans(s.World())
	if err := errors.Join(s.group(), stream.Synchronize(ctx)); err != nil {
		return err
	}
	if s.Device().Backend == "nccl" {
		return s.useNCCL(send.Address(), recv.Address())
	}
	s.inside = func(batch func() error) error { return batch() }
	if s.base = symmem.LaunchPlanned(s.World(), stream); s.base == nil {
		return errors.New("the group does not keep the plan")
	}
	return nil
}

// useNCCL makes NCCL's own call the baseline, made on a thread that keeps its device current, as a
// program in C does.
func (s *submitter) useNCCL(send, recv uintptr) error {
	library, err := nccl.Load()
	if err != nil {
		return err
	}
	comm, stream := nccl.Comm(s.World().Handle()), cuda.Stream(s.DefaultStream().Handle())
	call := library.AllReduce(send, recv, submitCount, nccl.Float32, nccl.Sum, comm)
	s.base = func() error { return call.On(stream) }
	s.inside = func(batch func() error) error {
		return backend.Current(s.Rank(), func(*cuda.Driver) error { return batch() })
	}
	return nil
}

// turn makes a batch through the group and one of the baseline.
func (s *submitter) turn(b *testing.B) error {
	direct := func(batch func() error) error { return batch() }
	return errors.Join(
		s.batch(b, direct, s.group, &s.groupNs), s.batch(b, s.inside, s.base, &s.baseNs))
}

// batch times the calls of a batch, and waits for them.
func (s *submitter) batch(
	b *testing.B, inside func(func() error) error, submit func() error, times *[]float64,
) error {
	err := inside(func() error {
		begin := time.Now()
		for range submitCalls {
			if err := submit(); err != nil {
				return err
			}
		}
		*times = append(*times, float64(time.Since(begin).Nanoseconds())/submitCalls)
		return nil
	})
	return errors.Join(err, s.DefaultStream().Synchronize(b.Context()))
}

// report reports the medians of all batches: a call, the baseline's, and how much more ours took
// than that of the same turn.
func (s *submitter) report(b *testing.B, path symmem.PathChoice) {
	over := make([]float64, len(s.groupNs))
	for i := range over {
		over[i] = s.groupNs[i] - s.baseNs[i]
	}
	median := func(v []float64) float64 { return slices.Sorted(slices.Values(v))[len(v)/2] }
	call := median(s.groupNs)
	b.ReportMetric(call, "ns/call")
	b.ReportMetric(median(s.baseNs), "base-ns/call")
	b.ReportMetric(median(over), "over-ns/call")
	if os.Getenv(barsVariable) == "" {
		return
	}
	if path == symmem.PathDirect && call > submitDirect {
		b.Errorf("%.0f ns, the bar is %d", call, submitDirect)
	}
	if path != symmem.PathDirect && median(over) > submitOver {
		b.Errorf("%.0f ns over the baseline, the bar is %d", median(over), submitOver)
	}
}
