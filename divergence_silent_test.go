package symmem_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"symmem"
)

// The tests in this file cause faults that calls must always report. After each fault, every rank
// must be able to use a new group. lost_test.go contains the tests in which a process dies.

// soon is the timeout of calls that wait for a rank that never arrives.
const soon = 300 * time.Millisecond

// checkEvery makes ranks compare every call, which only some backends do by default.
var checkEvery = symmem.Options{Check: symmem.CheckEvery}

func TestDifferentAllocationsDiverge(t *testing.T) {
	for _, row := range []struct {
		name, event, why string
		allocate         func(r *rank, p *symmem.Pool)
	}{
		{
			"rank 2 allocates a different size", "alloc 8192 B",
			"rank 2 has a different size than ranks 0-1",
			func(r *rank, p *symmem.Pool) { r.alloc(p, 4096<<(r.Rank()/2)) },
		},
		{
			"rank 2 allocates an extra block", "alloc 512 B",
			"rank 2 has an event that ranks 0-1 do not have",
			func(r *rank, p *symmem.Pool) {
				if r.Rank() == 2 {
					r.alloc(p, 512)
				}

				r.alloc(p, 4096)
			},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			var texts errorTexts
			runWithFault(t, 3, symmem.Options{}, func(r *rank) {
				p := r.pool()
				r.alloc(p, mib)
				row.allocate(r, p)
				err := p.Register(r.ctx, r.World())
				r.wantDivergence(err)
				texts.add(r, err)
				if n := r.World().Stats().Windows; n != 0 {
					r.failf("%d windows after a divergence, want 0", n)
				}
			})
			text := texts.requireSame(t, 3)
			for _, want := range []string{row.event, row.why, "ranks 0-1 have", "rank 2 has"} {
				if !strings.Contains(text, want) {
					t.Errorf("the error %q does not contain %q", text, want)
				}
			}
		})
	}
}

func TestRegisterDuringCollectiveDiverges(t *testing.T) {
	for _, path := range []symmem.PathChoice{symmem.PathAuto, symmem.PathPlain, symmem.PathWindow} {
		t.Run(path.String(), func(t *testing.T) {
			var texts errorTexts
			o := symmem.Options{Check: symmem.CheckEvery, CallSites: true, Path: path}
			runWithFault(t, 3, o, func(r *rank) {
				p := r.pool()
				b := r.window(p, mib)
				r.checkSum(r.World(), b)
				if r.Rank() == 2 {
					extra := r.alloc(p, 64*mib)
					err := p.Register(r.ctx, r.World())
					texts.add(r, r.wantDivergence(err))
					r.wantErr(extra.Free(), nil)
					return
				}

				texts.add(r, r.wantDivergence(r.sum(r.World(), b)))
			})
			text := texts.requireSame(t, 3)
			for _, want := range []string{"segment 67108864 B", "rank_test.go", "ranks 0-1 do not have"} {
				if !strings.Contains(text, want) {
					t.Errorf("the error %q does not contain %q", text, want)
				}
			}
		})
	}
}

func TestSegmentsAreRegisteredInOrdinalOrder(t *testing.T) {
	runWithFault(t, 2, symmem.Options{}, func(r *rank) {
		var order []int
		r.Interop().Observe(symmem.Observer{Register: func(e symmem.WindowEvent) {
			order = append(order, e.Segment)
		}})
		p := r.pool()
		for range 20 {
			r.alloc(p, mib)
		}

		r.ok(p.Register(r.ctx, r.World()))
		if len(order) < 3 || !slices.IsSorted(order) {
			r.failf("segments were registered in the order %v, want at least 3 in ascending order", order)
		}
	})
}

func TestPoolRegistrationOrderDiverges(t *testing.T) {
	var texts errorTexts
	runWithFault(t, 2, symmem.Options{}, func(r *rank) {
		pools := []*symmem.Pool{r.pool(), r.pool()}
		for _, p := range pools {
			r.alloc(p, mib)
		}

		err := pools[r.Rank()].Register(r.ctx, r.World())
		r.wantDivergence(err)
		texts.add(r, err)
	})
	texts.requireSame(t, 2)
}

func TestTimeoutNamesRankMissingFromRegister(t *testing.T) {
	var texts errorTexts
	created, done := newGate(3), newGate(3)
	var isCreated atomic.Bool // Split warns about late ranks, too
	wait := newSharedDeadline(func(w symmem.LateWarning) bool {
		return isCreated.Load() && w.InCall == "agreement of group world/2.0" &&
			slices.Equal(w.Ranks, []int{1})
	})
	runWithFault(t, 3, wait.options(), func(r *rank) {
		g, p := r.split(r.World(), 0), r.pool()
		r.alloc(p, mib)
		created.wait(r)
		isCreated.Store(true)
		if r.Rank() != 1 {
			err := p.Register(wait.context(r), g)
			r.wantTimeout(err, 1)
			texts.add(r, err)
		}

		done.wait(r)
		r.wantTimeout(p.Register(r.ctx, g), 1)
		r.wantTimeout(g.Cause(r.ctx), 1)
	})
	if text := texts.requireSame(t, 2); !strings.Contains(text, "rank 1") {
		t.Errorf("got error %q, want one that names rank 1", text)
	}
}

func TestGroupRegistrationOrderTimesOut(t *testing.T) {
	runWithFault(t, 2, symmem.Options{}, func(r *rank) {
		groups := []*symmem.Group{r.split(r.World(), 0), r.split(r.World(), 0)}
		p := r.pool()
		r.alloc(p, mib)
		err := r.withTimeout(soon, func(ctx context.Context) error {
			return p.Register(ctx, groups[r.Rank()])
		})
		r.wantTimeout(err, 1-r.Rank())
		if !strings.Contains(err.Error(), groups[r.Rank()].ID()) {
			r.failf("got error %q, want one that names group %s", err, groups[r.Rank()].ID())
		}
	})
}

// displacedBuffer returns a buffer in a window. The buffer's offset differs between the two ranks
// although they make identical requests, because blocks are placed by address and the addresses of
// segments vary.
func displacedBuffer(r *rank) symmem.Buffer {
	p := r.poolWith(symmem.PoolOptions{
		Domain: r.World(), FirstSegment: 4 * mib, Placement: symmem.PlaceByAddress,
	})
	var all []symmem.Buffer
	for range 64 {
		all = append(all, r.alloc(p, mib/2))
	}

	r.ok(p.Register(r.ctx, r.World()))
	for i := 0; i < len(all); i += 2 {
		r.ok(all[i].Free())
	}

	return r.alloc(p, mib/2)
}

// scatterSeed is a seed for segment addresses with which displacedBuffer returns a different
// offset on each rank.
const scatterSeed = 5

func TestBuffersAtDifferentOffsets(t *testing.T) {
	t.Run("diverge if every call is compared", func(t *testing.T) {
		var texts errorTexts
		o := symmem.Options{Scatter: scatterSeed, Check: symmem.CheckEvery}
		runWithFault(t, 2, o, func(r *rank) {
			b := displacedBuffer(r)
			err := r.sum(r.World(), b)
			r.wantDivergence(err)
			texts.add(r, err)
		})
		if text := texts.requireSame(t, 2); !strings.Contains(text, "segment") {
			t.Errorf("got error %q, want one that names a segment", text)
		}
	})
	t.Run("diverge if the ranks have freed different buffers", func(t *testing.T) {
		var texts errorTexts
		runWithFault(t, 2, checkEvery, func(r *rank) {
			p := r.pool()
			pair := []symmem.Buffer{r.alloc(p, mib), r.window(p, mib)}
			r.ok(pair[r.Rank()].Free())
			err := r.sum(r.World(), r.alloc(p, mib))
			r.wantDivergence(err)
			texts.add(r, err)
		})
		if text := texts.requireSame(t, 2); !strings.Contains(text, "free") {
			t.Errorf("got error %q, want one that names the free", text)
		}
	})
	t.Run("give wrong sums with checks off", func(t *testing.T) {
		var mu sync.Mutex
		places, wrongRanks := map[string]bool{}, 0
		runWithFault(t, 2, symmem.Options{Scatter: scatterSeed, Check: symmem.CheckOff}, func(r *rank) {
			b := displacedBuffer(r)
			r.fill(b, 1)
			r.ok(r.World().Barrier(r.ctx, nil))
			r.ok(r.sum(r.World(), b))
			mu.Lock()
			defer mu.Unlock()
			places[fmt.Sprint(b.Segment(), b.Offset())] = true
			if slices.ContainsFunc(r.floats(b), func(v float32) bool { return v != 2 }) {
				wrongRanks++
			}
		})
		if len(places) != 2 || wrongRanks == 0 {
			t.Errorf("got places %v and %d ranks with wrong sums, want 2 and at least 1", places, wrongRanks)
		}
	})
}

func TestMemoryPastWindowEndIsRejected(t *testing.T) {
	runWithFault(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.window(p, 4096)
		if r.Rank() == 1 {
			m := b.Memory()
			err := r.World().AllReduce(r.ctx, m, m, 1025, symmem.Float32, symmem.Sum, nil)
			r.wantErr(err, symmem.ErrOutOfRange)
			if paths := r.World().Stats().Paths; len(paths) != 0 {
				r.failf("Paths = %v, want none", paths)
			}
		}

		r.checkSum(r.World(), b)
	})
}

func TestRegisterDuringCaptureKeepsCapture(t *testing.T) {
	runWithFault(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.window(p, mib)
		r.fill(b, 1)
		s := r.DefaultStream()
		m := b.Memory()
		r.ok(s.BeginCapture())
		r.ok(r.World().AllReduce(r.ctx, m, m, b.Size()/4, symmem.Float32, symmem.Sum, s))
		r.alloc(p, 8*mib)
		r.wantErr(p.Register(r.ctx, r.World()), symmem.ErrCapturing)
		scope := p.Begin(r.World())
		r.wantErr(scope.End(r.ctx), symmem.ErrCapturing)
		g, err := s.EndCapture()
		r.ok(err)
		r.ok(g.Launch(s))
		r.synchronize()
		r.checkAll(b, 2)
		r.ok(g.Close())
		r.ok(p.Register(r.ctx, r.World()))
		if n := r.World().Stats().Windows; n != p.Stats().Segments {
			r.failf("%d windows, want one for each of %d segments", n, p.Stats().Segments)
		}
	})
}

func TestTrimDeregistersFreedMemory(t *testing.T) {
	runWithFault(t, 2, symmem.Options{}, func(r *rank) {
		var order []string
		record := func(name string, e symmem.SegmentEvent) {
			order = append(order, fmt.Sprint(name, " ", e.Segment))
		}
		r.Interop().Observe(symmem.Observer{
			Deregister:  func(e symmem.WindowEvent) { record("deregister", e.SegmentEvent) },
			SegmentFree: func(e symmem.SegmentEvent) { record("unmap", e) },
		})
		p := r.pool()
		b := r.window(p, mib)
		r.ok(b.Free())
		if len(order) != 0 || !r.World().IsSymmetric(b.Memory()) {
			r.failf("got %v after Free, want no events", order)
		}

		again := r.alloc(p, mib)
		if again.Address() != b.Address() {
			r.failf("the next block is at %#x, want the freed one at %#x", again.Address(), b.Address())
		}

		r.checkSum(r.World(), again)
		r.ok(again.Free())
		r.ok(p.Trim(r.ctx, 0))
		if !slices.Equal(order, []string{"deregister 0", "unmap 0"}) {
			r.failf("got %v after Trim, want deregister 0, unmap 0", order)
		}

		if r.World().IsSymmetric(b.Memory()) {
			r.failf("IsSymmetric = true after Trim, want false")
		}
	})
}

func TestOutOfMemoryOnOneRankDiverges(t *testing.T) {
	for _, row := range []struct {
		name, want string
		next       func(r *rank, p *symmem.Pool) error
	}{
		{"a check", "16777216 B", func(r *rank, _ *symmem.Pool) error {
			return r.World().Check(r.ctx)
		}},
		{"a registration that one rank does not need", "16777216 B", func(r *rank, p *symmem.Pool) error {
			if err := p.Register(r.ctx, r.World()); err != nil {
				return err
			}

			return errors.Join(r.World().Barrier(r.ctx, nil), r.DefaultStream().Synchronize(r.ctx))
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var texts errorTexts
			runWithFault(t, 2, symmem.Options{}, func(r *rank) {
				p := r.poolWith(symmem.PoolOptions{
					Domain: r.World(), FirstSegment: 4 * mib, Capacity: int64(64>>(4*r.Rank())) * mib,
				})
				_, err := p.Alloc(16 * mib)
				if r.Rank() == 1 {
					var oom *symmem.OutOfMemoryError
					if !errors.As(err, &oom) || oom.Capacity != 4*mib || oom.Requested != 16*mib {
						r.failf("got %v, want an OutOfMemoryError", err)
					}
				} else {
					r.ok(err)
				}

				err = row.next(r, p)
				texts.add(r, r.wantDivergence(err))
			})
			if text := texts.requireSame(t, 2); !strings.Contains(text, row.want) {
				t.Errorf("the error %q does not contain %q", text, row.want)
			}
		})
	}
}

func TestDifferentCollectivesDiverge(t *testing.T) {
	for _, row := range []struct {
		name, want string
		call       func(r *rank, m symmem.Memory) error
	}{
		{"in the count", "of 5 float32", func(r *rank, m symmem.Memory) error {
			return r.World().AllReduce(
				r.ctx, m, m, int64(5+r.Rank()), symmem.Float32, symmem.Sum, nil)
		}},
		{"in the type", "bfloat16", func(r *rank, m symmem.Memory) error {
			t := []symmem.DataType{symmem.Float16, symmem.BFloat16}[r.Rank()]
			return r.World().AllReduce(r.ctx, m, m, 5, t, symmem.Sum, nil)
		}},
		{"in the reduction", "max", func(r *rank, m symmem.Memory) error {
			op := []symmem.ReduceOp{symmem.Sum, symmem.Max}[r.Rank()]
			return r.World().AllReduce(r.ctx, m, m, 5, symmem.Float32, op, nil)
		}},
		{"in the root", "root 1", func(r *rank, m symmem.Memory) error {
			return r.World().Broadcast(r.ctx, m, m, 5, symmem.Float32, r.Rank(), nil)
		}},
		{"in the operation", "Barrier", func(r *rank, m symmem.Memory) error {
			if r.Rank() == 1 {
				return r.World().Barrier(r.ctx, nil)
			}

			return r.World().Broadcast(r.ctx, m, m, 5, symmem.Float32, 0, nil)
		}},
	} {
		for _, windows := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, windows %v", row.name, windows), func(t *testing.T) {
				var texts errorTexts
				runWithFault(t, 2, checkEvery, func(r *rank) {
					m := r.unregistered(256)
					if windows {
						m = r.window(r.pool(), 4096).Memory()
					}

					err := errors.Join(row.call(r, m), r.DefaultStream().Synchronize(r.ctx))
					texts.add(r, r.wantDivergence(err))
				})
				if text := texts.requireSame(t, 2); !strings.Contains(text, row.want) {
					t.Errorf("the error %q does not contain %q", text, row.want)
				}
			})
		}
	}
}

func TestSplitDuringRegisterDiverges(t *testing.T) {
	runWithFault(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		r.alloc(p, 4096)
		var err error
		if r.Rank() == 0 {
			err = p.Register(r.ctx, r.World())
		} else {
			_, err = r.World().Split(r.ctx, 0, 0)
		}

		r.wantDivergence(err)
	})
}

func TestBuffersOfDifferentPoolsDiverge(t *testing.T) {
	runWithFault(t, 2, checkEvery, func(r *rank) {
		pools := []*symmem.Pool{r.pool(), r.pool()}
		var b []symmem.Buffer
		for _, p := range pools {
			b = append(b, r.window(p, 1<<20))
			r.fill(b[len(b)-1], float32(r.Rank()+1))
		}

		m := b[r.Rank()].Memory()
		err := errors.Join(r.World().AllReduce(r.ctx, m, m, 1<<18, symmem.Float32, symmem.Sum, nil),
			r.DefaultStream().Synchronize(r.ctx))
		r.wantDivergence(err)
	})
}

// TestRegistrationIgnoresCachedPlans makes a call whose plan only rank 1 has cached. Both ranks
// must register the new memory.
func TestRegistrationIgnoresCachedPlans(t *testing.T) {
	runWithFault(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.window(p, 4096)
		r.checkSum(r.World(), b)
		r.alloc(p, 8*mib)
		if r.Rank() == 0 {
			symmem.ForgetPlans(r.World())
		}

		r.checkSum(r.World(), b)
		if n := r.World().Stats().Windows; n != 2 {
			r.failf("%d windows, want 2", n)
		}
	})
}
