package symmem_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"symmem"
	"symmem/internal/ranktest"
	"symmem/internal/sys"
)

// BenchmarkRegister measures how long two ranks take to register new segments. It reports the time
// of the slower rank, which must not grow with the number of registered segments.
func BenchmarkRegister(b *testing.B) {
	for _, existing := range []int{0, 10, 100, 1000} {
		if testing.Short() && existing > 100 {
			continue
		}

		w := newRegisteredWorld(b, existing)
		for _, fresh := range []int{1, 8} {
			b.Run(fmt.Sprintf("new=%d/there=%d", fresh, existing), func(b *testing.B) {
				took := time.Duration(0)
				for b.Loop() {
					took += w.register(b, fresh)
				}

				each := float64(took.Nanoseconds()) / float64(b.N)
				b.ReportMetric(each, "ns/op")
				b.ReportMetric(each/float64(fresh), "ns/segment")
			})
		}
	}
}

type registeredWorld struct {
	segments int
	pools    []*grownPool
}

func newRegisteredWorld(b *testing.B, segments int) *registeredWorld {
	b.Helper()
	w := &registeredWorld{segments: segments, pools: make([]*grownPool, 2)}
	runtimes := local(b, 2)
	each(b, runtimes, func(i int, rt *symmem.Runtime) error {
		w.pools[i] = newGrownPool(b, rt, 1)
		w.pools[i].grow(b, segments)
		return nil
	})
	return w
}

// register adds segments, measures the time of their registration, and trims them.
func (w *registeredWorld) register(b *testing.B, fresh int) time.Duration {
	b.Helper()
	took := make([]time.Duration, len(w.pools))
	runtimes := []*symmem.Runtime{w.pools[0].rt, w.pools[1].rt}
	each(b, runtimes, func(i int, rt *symmem.Runtime) error {
		g := w.pools[i]
		if err := g.allocate(w.segments + fresh); err != nil {
			return err
		}

		if err := barrier(b.Context(), rt); err != nil {
			return err
		}

		begin := time.Now()
		if err := g.pool.Register(b.Context(), rt.World()); err != nil {
			return err
		}

		took[i] = time.Since(begin)
		return g.shrink(b.Context(), w.segments)
	})
	return max(took[0], took[1])
}

func (g *grownPool) shrink(ctx context.Context, segments int) error {
	for len(g.blocks) > 2*segments {
		last := len(g.blocks) - 1
		if err := g.blocks[last].Free(); err != nil {
			return err
		}

		g.blocks = g.blocks[:last]
	}

	return g.pool.Trim(ctx, int64(segments)*2*halfSegment)
}

// local opens a world in this process.
func local(tb testing.TB, ranks int) []*symmem.Runtime {
	tb.Helper()
	runtimes, err := symmem.OpenLocal(tb.Context(), ranks, withBackend(symmem.Options{}))
	if errors.Is(err, symmem.ErrUnsupported) {
		tb.Skip(err)
	}

	if err != nil {
		tb.Fatal(err)
	}

	tb.Cleanup(func() {
		each(tb, runtimes, func(_ int, rt *symmem.Runtime) error { return closeLive(rt) })
	})
	return runtimes
}

func closeLive(rt *symmem.Runtime) error {
	symmem.FreeLive(rt)
	return rt.Close()
}

func each(tb testing.TB, runtimes []*symmem.Runtime, f func(int, *symmem.Runtime) error) {
	tb.Helper()
	err := ranktest.Run(len(runtimes), func(i int) error { return f(i, runtimes[i]) })
	if err != nil {
		tb.Fatal(err)
	}
}

// barrier waits until all ranks have called it and their work is done.
func barrier(ctx context.Context, rt *symmem.Runtime) error {
	if err := rt.World().Barrier(ctx, nil); err != nil {
		return err
	}

	return rt.DefaultStream().Synchronize(ctx)
}

// BenchmarkFirstTouch measures the first access to the pages of a host segment. It compares an
// access by the owner with an access to a plain shared file, which has no huge pages. It also
// compares the first broadcast over the window, in which a peer accesses the pages for the first
// time, with the second broadcast. The page sizes of the segments are logged.
func BenchmarkFirstTouch(b *testing.B) {
	system := sys.ReadHugePages()
	b.Logf("shmem_enabled is %q; %d of %d pages of 2 MiB are free",
		system.SharedPolicy, system.Free, system.Reserved)
	for name, choose := range map[string]func(*touches) touch{
		"by=owner":            func(t *touches) touch { return t.owner },
		"by=plain-file":       func(t *touches) touch { return t.plain },
		"by=first-broadcast":  func(t *touches) touch { return t.first },
		"by=second-broadcast": func(t *touches) touch { return t.second },
	} {
		b.Run(name, func(b *testing.B) {
			var took time.Duration
			faults := 0
			for b.Loop() {
				t := choose(freshSegment(b))
				took, faults = took+t.took, faults+t.faults
			}

			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "ns/op")
			b.ReportMetric(float64(faults)/float64(b.N), "faults/op")
		})
	}
}

func TestFreshSegmentPageFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("touches 256 MiB")
	}

	all := freshSegment(t)
	if all.owner.faults < 32 || all.plain.faults < freshBytes/smallPage {
		t.Errorf("%d page faults of the owner and %d of a plain file, want at least 32 and one per page",
			all.owner.faults, all.plain.faults)
	}

	if all.first.faults <= all.second.faults {
		t.Errorf("%d page faults in the first broadcast and %d in the second, want fewer in the second",
			all.first.faults, all.second.faults)
	}
}

const freshBytes = 64 << 20

// smallPage is the page size without huge pages.
const smallPage = 4096

// touch holds the time and the number of page faults of an access.
type touch struct {
	took   time.Duration
	faults int
}

type touches struct{ owner, plain, first, second touch }

// freshSegment creates a host segment on two ranks of this process. The owner touches the segment,
// and two broadcasts then send it to memory that has already been touched.
func freshSegment(tb testing.TB) *touches {
	tb.Helper()
	var t touches
	runtimes, err := symmem.OpenLocal(tb.Context(), 2, symmem.Options{Backend: "host"})
	if err != nil {
		tb.Fatal(err)
	}

	each(tb, runtimes, func(_ int, rt *symmem.Runtime) error {
		local, err := touchFresh(tb.Context(), rt)
		if rt.Rank() == 0 {
			t = local
		}

		return errors.Join(err, closeLive(rt))
	})
	if t.plain, err = touchPlain(); err != nil {
		tb.Fatal(err)
	}

	return &t
}

func touchFresh(ctx context.Context, rt *symmem.Runtime) (t touches, err error) {
	send, sent, err := segmentOf(ctx, rt)
	if err != nil {
		return t, err
	}

	recv, received, err := segmentOf(ctx, rt)
	if err != nil {
		return t, err
	}

	_ = touchAll(received)
	if rt.Rank() == 0 {
		if t.owner, err = timed(func() error { return touchAll(sent) }); err != nil {
			return t, err
		}
	}

	broadcast := func() error {
		err := rt.World().Broadcast(
			ctx, send.Memory(), recv.Memory(), freshBytes, symmem.Uint8, 0, nil)
		if err != nil {
			return err
		}

		return barrier(ctx, rt)
	}
	if err := barrier(ctx, rt); err != nil {
		return t, err
	}

	if t.first, err = timed(broadcast); err != nil {
		return t, err
	}

	t.second, err = timed(broadcast)
	return t, err
}

// segmentOf creates a pool, registers a segment and returns a buffer that fills the segment.
func segmentOf(
	ctx context.Context, rt *symmem.Runtime,
) (b symmem.Buffer, view []uint8, err error) {
	pool, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World(), FirstSegment: freshBytes})
	if err != nil {
		return b, nil, err
	}

	err = pool.With(ctx, rt.World(), func(s *symmem.Scope) (err error) {
		b, err = s.Alloc(freshBytes)
		return err
	})
	if err != nil {
		return b, nil, err
	}

	view, err = symmem.View[uint8](b)
	return b, view, err
}

// timed measures a function. It counts the page faults of the whole process, because work on a
// stream may run on any thread.
func timed(f func() error) (touch, error) {
	var before, after syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		return touch{}, err
	}

	begin := time.Now()
	err := f()
	took := time.Since(begin)
	err = errors.Join(err, syscall.Getrusage(syscall.RUSAGE_SELF, &after))
	return touch{took, int(after.Minflt + after.Majflt - before.Minflt - before.Majflt)}, err
}

func touchAll(b []byte) error {
	for i := 0; i < len(b); i += smallPage {
		b[i] = 1
	}

	return nil
}

func touchPlain() (t touch, err error) {
	f, err := sys.Memfd("symmem-plain", freshBytes)
	if err != nil {
		return t, err
	}

	defer func() { err = errors.Join(err, f.Close()) }()
	return touchFile(f)
}

// touchFile maps a file and touches its pages. Unlike sys.Map it does not call madvise.
func touchFile(f *os.File) (touch, error) {
	b, err := syscall.Mmap(int(f.Fd()), 0, freshBytes,
		syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return touch{}, err
	}

	t, err := timed(func() error { return touchAll(b) })
	return t, errors.Join(err, syscall.Munmap(b))
}
