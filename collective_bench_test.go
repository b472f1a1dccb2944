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

// Limits of BenchmarkSubmit, which apply only if SYMMEM_TEST_BARS is set.
const (
	maxOverheadNs = 300  // difference from the baseline, except on the direct path
	maxDirectNs   = 5000 // time of a call on the direct path
)

const (
	submitCalls = 500 // calls of a batch
	submitCount = 8   // elements of a call
)

// BenchmarkSubmit measures the CPU time of submitting a small all-reduce, on rank 0 of two ranks.
// Batches of calls through the group alternate with batches of a baseline on the same communicator
// and stream: ncclAllReduce on GPUs, and a launch of the same plan on the host backend.
//
//	go test . -run '^$' -bench Submit -cpu 2
func BenchmarkSubmit(b *testing.B) {
	runtimes, err := symmem.OpenLocal(b.Context(), 2, withBackend(symmem.Options{}))
	if errors.Is(err, symmem.ErrUnsupported) {
		b.Skip("needs two ranks:", err)
	}
	if err != nil {
		b.Fatal(err)
	}
	ranks := make([]*submitter, len(runtimes))
	for i, rt := range runtimes {
		ranks[i] = &submitter{Runtime: rt}
	}
	onEachRank := func(f func(*submitter) error) {
		b.Helper()
		err := ranktest.Run(len(ranks), func(i int) error {
			err := f(ranks[i])
			if err != nil {
				ranks[i].World().Abort() // the other rank may wait for this one
			}
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	b.Cleanup(func() {
		onEachRank(func(s *submitter) error {
			symmem.FreeLive(s.Runtime)
			return s.Close()
		})
	})
	onEachRank(func(s *submitter) error { return s.allocate(b) })
	for _, path := range []symmem.PathChoice{
		symmem.PathPlain, symmem.PathWindow, symmem.PathDirect,
	} {
		onEachRank(func(s *submitter) error { return s.World().SetPath(b.Context(), path) })
		b.Run("path="+path.String(), func(b *testing.B) {
			onEachRank(func(s *submitter) error { return s.prepare(b, path) })
			if !ranks[0].hasPath {
				b.Skipf("the backend does not have the path %v: %v", path, symmem.ErrUnsupported)
			}
			for b.Loop() {
				onEachRank(func(s *submitter) error { return s.timeBatches(b) })
			}
			ranks[0].report(b, path)
		})
	}
}

type submitter struct {
	*symmem.Runtime
	send, recv [2]symmem.Buffer // indexed by unregisteredBuffer and registeredBuffer
	hasPath    bool             // the backend has the path of the latest prepare
	callGroup  func() error     // makes a call through the group
	// callBaseline makes a call of the baseline. It is called inside runBaselineBatch, which
	// prepares the calling thread for a batch of calls.
	callBaseline     func() error
	runBaselineBatch func(batch func() error) error
	// Mean time of a call, for each batch.
	groupNs, baselineNs []float64
}

const (
	unregisteredBuffer = iota
	registeredBuffer
)

func (s *submitter) allocate(b *testing.B) error {
	optionsByBuffer := []symmem.PoolOptions{
		unregisteredBuffer: {}, registeredBuffer: {Domain: s.World()},
	}
	for i, o := range optionsByBuffer {
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

// prepare sets the functions to measure for a path. It makes a call, so that the plan is cached.
// If the backend does not have the path, prepare only sets hasPath to false.
func (s *submitter) prepare(b *testing.B, path symmem.PathChoice) error {
	buffers := registeredBuffer
	if path == symmem.PathPlain {
		buffers = unregisteredBuffer
	}
	send, recv := s.send[buffers].Memory(), s.recv[buffers].Memory()
	e, err := s.World().Explain(symmem.OpAllReduce, send, recv, submitCount, symmem.Float32)
	s.hasPath = err == nil && e.Path == path.String()
	if !s.hasPath {
		return nil
	}
	ctx, stream := b.Context(), s.DefaultStream()
	s.groupNs, s.baselineNs = nil, nil
	s.callGroup = func() error {
		return s.World().AllReduce(
			ctx, send, recv, submitCount, symmem.Float32, symmem.Sum, stream)
	}
	symmem.ForgetPlans(s.World())
	if err := errors.Join(s.callGroup(), stream.Synchronize(ctx)); err != nil {
		return err
	}
	if s.Device().Backend == "nccl" {
		return s.useNCCL(send.Address(), recv.Address())
	}
	s.runBaselineBatch = func(batch func() error) error { return batch() }
	s.callBaseline = symmem.LaunchPlanned(s.World(), stream)
	if s.callBaseline == nil {
		return errors.New("the group has not cached exactly one plan")
	}
	return nil
}

// useNCCL makes ncclAllReduce the baseline. It sets the current device only once per batch, as a C
// program does.
func (s *submitter) useNCCL(send, recv uintptr) error {
	library, err := nccl.Load()
	if err != nil {
		return err
	}
	comm, stream := nccl.Comm(s.World().Handle()), cuda.Stream(s.DefaultStream().Handle())
	call := library.AllReduce(send, recv, submitCount, nccl.Float32, nccl.Sum, comm)
	s.callBaseline = func() error { return call.On(stream) }
	s.runBaselineBatch = func(batch func() error) error {
		return backend.Current(s.Rank(), func(*cuda.Driver) error { return batch() })
	}
	return nil
}

func (s *submitter) timeBatches(b *testing.B) error {
	runDirectly := func(batch func() error) error { return batch() }
	return errors.Join(
		s.timeBatch(b, runDirectly, s.callGroup, &s.groupNs),
		s.timeBatch(b, s.runBaselineBatch, s.callBaseline, &s.baselineNs))
}

// timeBatch appends the mean time of the calls in a batch.
func (s *submitter) timeBatch(
	b *testing.B, run func(func() error) error, submit func() error, times *[]float64,
) error {
	err := run(func() error {
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

// report reports the medians of the time through the group, of the baseline and of the difference.
// If SYMMEM_TEST_BARS is set, it checks the limits.
func (s *submitter) report(b *testing.B, path symmem.PathChoice) {
	overheads := make([]float64, len(s.groupNs))
	for i := range overheads {
		overheads[i] = s.groupNs[i] - s.baselineNs[i]
	}
	median := func(v []float64) float64 { return slices.Sorted(slices.Values(v))[len(v)/2] }
	call := median(s.groupNs)
	b.ReportMetric(call, "ns/call")
	b.ReportMetric(median(s.baselineNs), "base-ns/call")
	b.ReportMetric(median(overheads), "over-ns/call")
	if os.Getenv(barsVariable) == "" {
		return
	}
	if path == symmem.PathDirect && call > maxDirectNs {
		b.Errorf("a call takes %.0f ns, want at most %d", call, maxDirectNs)
	}
	if path != symmem.PathDirect && median(overheads) > maxOverheadNs {
		b.Errorf("a call takes %.0f ns more than the baseline, want at most %d",
			median(overheads), maxOverheadNs)
	}
}
