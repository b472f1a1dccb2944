package symmem_test

import (
	"errors"
	"testing"
	"time"

	"symmem"
)

// The tests in this file queue work after a failed call. The work must not run, events must report
// the error, and groups whose collectives need the results of that work must also fail.

// mistakes lists mistakes that one rank makes in an all-reduce while the other ranks make the
// correct call.
var mistakes = map[string]func(r *rank, g *symmem.Group, m symmem.Memory) error{
	"wrong count": func(r *rank, g *symmem.Group, m symmem.Memory) error {
		return g.AllReduce(r.ctx, m, m, 999, symmem.Float32, symmem.Sum, nil)
	},
	"wrong type": func(r *rank, g *symmem.Group, m symmem.Memory) error {
		return g.AllReduce(r.ctx, m, m, 1000, symmem.Int32, symmem.Sum, nil)
	},
	"abort": func(_ *rank, g *symmem.Group, _ symmem.Memory) error {
		g.Abort()
		return nil
	},
	"close": func(_ *rank, g *symmem.Group, _ symmem.Memory) error { return g.Close() },
}

// sum1000 makes the correct call of the all-reduce in which another rank makes a mistake.
func (r *rank) sum1000(g *symmem.Group, m symmem.Memory, s *symmem.Stream) error {
	return g.AllReduce(r.ctx, m, m, 1000, symmem.Float32, symmem.Sum, s)
}

func TestEventCarriesFailure(t *testing.T) {
	waits := map[string]func(r *rank, e *symmem.Event, m symmem.Memory) error{
		"event": func(r *rank, e *symmem.Event, _ symmem.Memory) error {
			return e.Synchronize(r.ctx)
		},
		"stream": func(r *rank, e *symmem.Event, m symmem.Memory) error {
			compute, out := r.stream(), make([]float32, 1000)
			r.ok(compute.Wait(e))
			r.ok(compute.Copy(symmem.Host(out), m))
			err := compute.Synchronize(r.ctx)
			if out[0] != 0 {
				r.failf("work after the failure has run")
			}

			r.ok(compute.Copy(symmem.Host(out), m))
			r.ok(compute.Synchronize(r.ctx))
			if out[0] == 0 {
				r.failf("the stream does not run work after Synchronize")
			}

			return err
		},
	}
	for mistake, fail := range mistakes {
		for name, wait := range waits {
			t.Run(mistake+", "+name, func(t *testing.T) {
				queued := newGate(2)
				runRanks(t, 2, checkEvery, func(r *rank) {
					r.requireDroppedWork()
					g := r.split(r.World(), 0)
					m := r.memory1000(g)
					if r.Rank() == 1 {
						queued.wait(r)
						_ = fail(r, g, m)
						_ = r.DefaultStream().Synchronize(r.ctx)
						return
					}

					comm, e := r.stream(), r.event()
					release := r.hold(comm)
					r.ok(r.sum1000(g, m, comm))
					r.ok(comm.Record(e))
					queued.wait(r)
					release()
					if got := wait(r, e, m); got == nil || !errors.Is(got, g.Cause(r.ctx)) {
						r.failf("wait: got %v, want %v", got, g.Cause(r.ctx))
					}

					if got := comm.Synchronize(r.ctx); !errors.Is(got, g.Cause(r.ctx)) {
						r.failf("Synchronize: got %v, want %v", got, g.Cause(r.ctx))
					}
				})
			})
		}
	}
}

// requireDroppedWork skips the test unless failed streams drop their work.
func (r *rank) requireDroppedWork() {
	if !r.Device().Addressable {
		r.skip("a GPU runs queued work after a failure", symmem.ErrUnsupported)
	}
}

// memory1000 allocates 1000 nonzero numbers in windows of the groups.
func (r *rank) memory1000(groups ...*symmem.Group) symmem.Memory {
	r.t.Helper()
	p := r.pool()
	b := r.alloc(p, 4096)
	for _, g := range groups {
		r.ok(p.Register(r.ctx, g))
	}

	r.fill(b, float32(r.Rank()+1))
	m, err := b.Memory().Slice(0, 4000)
	r.ok(err)
	return m
}

func (r *rank) event() *symmem.Event {
	r.t.Helper()
	e, err := r.NewEvent()
	r.ok(err)
	return e
}

// TestFailureReachesOtherGroups runs two all-reduces, the first over ranks 0 and 2 and the second
// over ranks 0 and 1. Rank 2 makes a mistake in the first one.
func TestFailureReachesOtherGroups(t *testing.T) {
	for mistake, fail := range mistakes {
		for _, graph := range []bool{false, true} {
			name := mistake
			if graph {
				name += ", in a graph"
			}

			t.Run(name, func(t *testing.T) {
				queued := newGate(3)
				runRanks(t, 3, checkEvery, func(r *rank) { sumInTwoSteps(r, graph, queued, fail) })
			})
		}
	}
}

func sumInTwoSteps(
	r *rank, graph bool, queued *gate, fail func(*rank, *symmem.Group, symmem.Memory) error,
) {
	r.requireDroppedWork()
	first, second := r.split(r.World(), r.Rank()%2), r.split(r.World(), r.Rank()/2)
	m := r.memory1000(first, second)
	s := r.stream()
	switch r.Rank() {
	case 0:
		release := r.hold(s)
		r.ok(r.queueOrReplay(s, graph, func() error {
			return errors.Join(r.sum1000(first, m, s), r.sum1000(second, m, s))
		}))
		queued.wait(r)
		release()
	case 1:
		queued.wait(r)
		r.ok(r.queueOrReplay(s, graph, func() error { return r.sum1000(second, m, s) }))
	case 2:
		queued.wait(r)
		_ = fail(r, first, m)
		_ = r.DefaultStream().Synchronize(r.ctx)
		return
	}

	err := s.Synchronize(r.ctx)
	if err == nil || second.Cause(r.ctx) == nil {
		r.failf("got %v from the stream and %v from the second group, want errors", err,
			second.Cause(r.ctx))
	}

	if r.Rank() == 1 {
		if !errors.Is(err, second.Cause(r.ctx)) {
			r.failf("Synchronize: got %v, want %v", err, second.Cause(r.ctx))
		}

		var prior *symmem.PriorError
		if !errors.As(err, &prior) || prior.Rank != 0 || prior.Cause == nil {
			r.failf("got %v, want a PriorError of rank 0 with its cause", err)
		}
	}
}

// TestErrorsDistinguishFailedGroups makes a group fail because of a fault of the world. Calls in
// that group, and the stream on which they are made, must then return the error of the group.
func TestErrorsDistinguishFailedGroups(t *testing.T) {
	runRanks(t, 1, checkEvery, func(r *rank) {
		r.requireDroppedWork()
		g := r.split(r.World(), 0)
		m := r.memory1000(r.World(), g)
		first, second := r.stream(), r.stream()
		release := r.hold(first)
		r.ok(r.sum1000(r.World(), m, first))
		r.ok(r.sum1000(g, m, first))
		r.World().Abort()
		release()
		if err := first.Synchronize(r.ctx); !errors.Is(err, r.World().Cause(r.ctx)) {
			r.failf("Synchronize: got %v, want %v", err, r.World().Cause(r.ctx))
		}

		callErr := r.sum1000(g, m, second)
		for name, err := range map[string]error{
			"call": callErr, "stream": second.Synchronize(r.ctx),
		} {
			if !errors.Is(err, g.Cause(r.ctx)) {
				r.failf("%s: got %v, want %v", name, err, g.Cause(r.ctx))
			}
		}
	})
}

// TestErrorsDistinguishAbortedGroups aborts two groups. Work of each group must fail with the error
// of that group.
func TestErrorsDistinguishAbortedGroups(t *testing.T) {
	runRanks(t, 1, checkEvery, func(r *rank) {
		r.requireDroppedWork()
		groups := []*symmem.Group{r.split(r.World(), 0), r.split(r.World(), 0)}
		m := r.memory1000(groups...)
		var streams []*symmem.Stream
		for _, g := range groups {
			s := r.stream()
			release := r.hold(s)
			r.ok(r.sum1000(g, m, s))
			g.Abort()
			release()
			streams = append(streams, s)
		}

		for i, s := range streams {
			if err := s.Synchronize(r.ctx); !errors.Is(err, groups[i].Cause(r.ctx)) {
				r.failf("Synchronize: got %v, want %v", err, groups[i].Cause(r.ctx))
			}
		}
	})
}

func (r *rank) queueOrReplay(s *symmem.Stream, graph bool, queue func() error) error {
	if !graph {
		return queue()
	}

	r.ok(s.BeginCapture())
	r.ok(queue())
	g, err := s.EndCapture()
	r.ok(err)
	return g.Launch(s)
}

// TestWaitForOwnWorkHasNoDeadline keeps a stream of rank 0 busy for longer than the timeout, which
// is long enough for the other waits of the ranks.
func TestWaitForOwnWorkHasNoDeadline(t *testing.T) {
	const timeout = 4 * time.Second
	ready := newGate(2)
	runRanks(t, 2, symmem.Options{Timeout: timeout}, func(r *rank) {
		b := r.window(r.pool(), 4096)
		m := b.Memory()
		r.fill(b, float32(r.Rank()+1))
		s := r.stream()
		if r.Rank() == 0 {
			busy, e := r.stream(), r.event()
			release := r.hold(busy)
			r.ok(busy.Record(e))
			r.ok(s.Wait(e))
			time.AfterFunc(timeout*3/2, release)
			r.ok(e.Synchronize(r.ctx))
		}

		ready.wait(r)
		r.ok(r.World().SetTimeout(time.Minute))
		r.ok(r.World().AllReduce(r.ctx, m, m, 1024, symmem.Float32, symmem.Sum, s))
		r.ok(s.Synchronize(r.ctx))
		r.checkAll(b, 3)
	})
}

// TestMemoryOfFailedWorkIsReused frees memory that failed work has used, and allocates it on an
// unrelated stream. That stream must not fail.
func TestMemoryOfFailedWorkIsReused(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		r.requireDroppedWork()
		p := r.poolWith(symmem.PoolOptions{
			Domain: r.World(), FirstSegment: 2 * mib, Capacity: 2 * mib,
		})
		failing := r.stream()
		b := r.alloc(p, 2*mib)
		release := r.hold(failing)
		r.ok(failing.Host(func() { panic("on purpose") }))
		r.ok(failing.Fill(b.Memory(), 7))
		r.ok(b.Free())
		release()
		again := r.alloc(p, 2*mib)
		if again.Address() != b.Address() {
			r.failf("the buffer is at %#x, want the reused memory at %#x", again.Address(), b.Address())
		}

		r.fill(again, 3)
		r.synchronize()
		r.checkAll(again, 3)
		if err := failing.Synchronize(r.ctx); err == nil {
			r.failf("Synchronize of the failed stream returned no error")
		}
	})
}
