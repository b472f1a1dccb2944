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

// BenchmarkSubmit measures how much CPU time rank 0 needs to submit a small all-reduce to a group
// of two ranks. It compares this time with a baseline: the same operation on the same communicator
// and stream, but without the group. On GPUs, the baseline is ncclAllReduce. On the host backend,
// it is a launch of the plan, in which the group has cached its preparation of the call.
//
// For example, the mean time of a call in a batch through the group is 900 ns, and in the next
// batch of the baseline 700 ns: the overhead is 200 ns. The benchmark measures many such pairs of
// batches for each path (plain, window and direct: the ways in which a call can run).

const (
	submitCalls = 500 // calls in a batch: a batch takes much longer than reading the clock
	submitCount = 8   // float32 elements in a call: few, so that submitting takes most of the time
)

// Limits of BenchmarkSubmit, which it checks only if SYMMEM_TEST_BARS is set.
const (
	maxOverheadNs = 300  // median overhead on the plain and the window path
	maxDirectNs   = 5000 // median time of a call on the direct path
)

// submitter is a rank of BenchmarkSubmit.
type submitter struct {
	*symmem.Runtime
	send, recv [2]symmem.Buffer // indexed by unregisteredBuffer and registeredBuffer

	// prepare sets the following fields for a path.

	hasPath          bool                           // whether the backend has the path
	callGroup        func() error                   // makes a call through the group
	callBaseline     func() error                   // makes a call of the baseline
	runBaselineBatch func(batch func() error) error // runs a batch of callBaseline

	// groupNs and baselineNs contain the mean time of a call in each batch.
	groupNs, baselineNs []float64
}

// Indexes of submitter.send and submitter.recv.
const (
	unregisteredBuffer = iota // for the plain path
	registeredBuffer          // for the other paths
)

// BenchmarkSubmit measures the submission on each path.
//
//	go test . -run '^$' -bench Submit -cpu 2
func BenchmarkSubmit(b *testing.B) {
	ranks := openSubmitters(b)
	b.Cleanup(func() {
		runSubmitters(b, ranks, func(s *submitter) error {
			symmem.FreeLive(s.Runtime)
			return s.Close()
		})
	})
	runSubmitters(b, ranks, func(s *submitter) error { return s.allocate(b) })
	for _, path := range []symmem.PathChoice{
		symmem.PathPlain, symmem.PathWindow, symmem.PathDirect,
	} {
		runSubmitters(b, ranks, func(s *submitter) error {
			return s.World().SetPath(b.Context(), path)
		})
		b.Run("path="+path.String(), func(b *testing.B) {
			runSubmitters(b, ranks, func(s *submitter) error { return s.prepare(b, path) })
			if !ranks[0].hasPath {
				b.Skipf("the backend does not have the path %v: %v", path, symmem.ErrUnsupported)
			}

			for b.Loop() {
				runSubmitters(b, ranks, func(s *submitter) error { return s.timeBatches(b) })
			}

			ranks[0].report(b, path)
		})
	}
}

// openSubmitters opens a world of two ranks. It skips the benchmark if the backend has no devices
// for them.
func openSubmitters(b *testing.B) []*submitter {
	b.Helper()
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

	return ranks
}

// runSubmitters runs f on all ranks at the same time. It fails the benchmark if a rank fails.
func runSubmitters(b *testing.B, ranks []*submitter, f func(*submitter) error) {
	b.Helper()
	err := ranktest.Run(len(ranks), func(number int) error {
		s := ranks[number]
		err := f(s)
		if err != nil {
			s.World().Abort() // the other rank may wait for this one
		}

		return err
	})
	if err != nil {
		b.Fatal(err)
	}
}

// allocate allocates all buffers and registers those of registeredBuffer with the world.
func (s *submitter) allocate(b *testing.B) error {
	optionsByBuffer := []symmem.PoolOptions{
		unregisteredBuffer: {},
		registeredBuffer:   {Domain: s.World()}, // only such a pool can be registered
	}
	for i, o := range optionsByBuffer {
		pool, err := s.NewPool(o)
		if err != nil {
			return err
		}

		for _, buffer := range []*symmem.Buffer{&s.send[i], &s.recv[i]} {
			*buffer, err = pool.Alloc(4 * submitCount)
			if err != nil {
				return err
			}
		}

		if i == registeredBuffer {
			if err := pool.Register(b.Context(), s.World()); err != nil {
				return err
			}
		}
	}

	return nil
}

// prepare sets the functions to measure for a path and drops the times of other paths. It makes a
// call, so that the group caches the plan. If the backend does not have the path, prepare only sets
// hasPath to false.
func (s *submitter) prepare(b *testing.B, path symmem.PathChoice) error {
	index := registeredBuffer
	if path == symmem.PathPlain {
		index = unregisteredBuffer
	}

	send := s.send[index].Memory()
	recv := s.recv[index].Memory()
	explanation, err := s.World().Explain(
		symmem.OpAllReduce, send, recv, submitCount, symmem.Float32)
	s.hasPath = err == nil && explanation.Path == path.String()
	if !s.hasPath {
		return nil
	}

	ctx := b.Context()
	stream := s.DefaultStream()
	s.groupNs = nil
	s.baselineNs = nil
	s.callGroup = func() error {
		return s.World().AllReduce(
			ctx, send, recv, submitCount, symmem.Float32, symmem.Sum, stream)
	}
	symmem.ForgetPlans(s.World())
	if err := s.callGroup(); err != nil {
		return err
	}

	if err := stream.Synchronize(ctx); err != nil {
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

// useNCCL makes ncclAllReduce the baseline. Like a C program, the baseline sets the thread's
// current device only once in a batch.
func (s *submitter) useNCCL(send, recv uintptr) error {
	library, err := nccl.Load()
	if err != nil {
		return err
	}

	comm := nccl.Comm(s.World().Handle())
	stream := cuda.Stream(s.DefaultStream().Handle())
	call := library.AllReduce(send, recv, submitCount, nccl.Float32, nccl.Sum, comm)
	s.callBaseline = func() error { return call.On(stream) }
	s.runBaselineBatch = func(batch func() error) error {
		return backend.Current(s.Rank(), func(*cuda.Driver) error { return batch() })
	}
	return nil
}

// timeBatches times a batch of calls through the group and then a batch of the baseline.
func (s *submitter) timeBatches(b *testing.B) error {
	runDirectly := func(batch func() error) error { return batch() }
	groupErr := s.timeBatch(b, runDirectly, s.callGroup, &s.groupNs)
	baselineErr := s.timeBatch(b, s.runBaselineBatch, s.callBaseline, &s.baselineNs)
	return errors.Join(groupErr, baselineErr)
}

// timeBatch submits a batch of calls and appends the mean time of a call to times. It then waits
// for the calls to complete, which does not count.
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

// report reports the medians of the time through the group, of the baseline and of the overhead. It
// checks the limits if SYMMEM_TEST_BARS is set.
func (s *submitter) report(b *testing.B, path symmem.PathChoice) {
	overheads := make([]float64, len(s.groupNs))
	for i := range overheads {
		overheads[i] = s.groupNs[i] - s.baselineNs[i]
	}

	median := func(v []float64) float64 { return slices.Sorted(slices.Values(v))[len(v)/2] }
	callNs := median(s.groupNs)
	overheadNs := median(overheads)
	b.ReportMetric(callNs, "ns/call")
	b.ReportMetric(median(s.baselineNs), "base-ns/call")
	b.ReportMetric(overheadNs, "over-ns/call")
	if os.Getenv(barsVariable) == "" {
		return
	}

	if path == symmem.PathDirect {
		if callNs > maxDirectNs {
			b.Errorf("a call takes %.0f ns, want at most %d", callNs, maxDirectNs)
		}

		return
	}

	if overheadNs > maxOverheadNs {
		b.Errorf("a call takes %.0f ns more than the baseline, want at most %d", overheadNs,
			maxOverheadNs)
	}
}
