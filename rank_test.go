package symmem_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"symmem"
)

const mib = int64(1) << 20

// rank runs a test on one rank. A method that finds an error fails the test and ends the rank's
// goroutine.
type rank struct {
	*symmem.Runtime
	t   *testing.T
	ctx context.Context
	// skipReason explains why the backend cannot run the test. It is nil if the backend can run it.
	skipReason *atomic.Pointer[string]
	// cleanups run before the rank closes its Runtime. They let pending work on streams complete,
	// because Close waits for that work, and free the buffers of closed pools.
	cleanups []func()
}

// runRanks opens a local world, runs f on each of its ranks, and closes the world. A rank that
// fails aborts the world, because other ranks may wait for it. By default, collectives take the
// window path if the backend has one, but the options or the environment may choose another path.
func runRanks(t *testing.T, n int, o symmem.Options, f func(r *rank)) {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 20 * time.Second
	}

	if o.Path == symmem.PathDefault && o.Tuning == "" && os.Getenv("SYMMEM_PATH") == "" {
		o.Path = symmem.PathWindow
	}

	runtimes := openRanks(t, n, o)
	var skipReason atomic.Pointer[string]
	eachRank(runtimes, func(rt *symmem.Runtime) {
		r := &rank{Runtime: rt, t: t, ctx: t.Context(), skipReason: &skipReason}
		finished := false
		defer func() {
			for _, release := range r.cleanups {
				release()
			}

			if !finished && skipReason.Load() == nil {
				rt.World().Abort()
			}
		}()
		f(r)
		finished = true
	})
	eachRank(runtimes, func(rt *symmem.Runtime) {
		symmem.FreeLive(rt)
		if err := rt.Close(); err != nil && !t.Failed() {
			t.Errorf("closing rank %d: %v", rt.Rank(), err)
		}
	})
	if why := skipReason.Load(); why != nil && !t.Failed() {
		t.Skip(*why)
	}
}

func eachRank(runtimes []*symmem.Runtime, f func(*symmem.Runtime)) {
	var ranks sync.WaitGroup
	for _, rt := range runtimes {
		ranks.Go(func() { f(rt) })
	}

	ranks.Wait()
}

func (r *rank) ok(err error) {
	if err != nil {
		r.t.Helper()
		r.failf("%v", err)
	}
}

func (r *rank) failf(format string, args ...any) {
	r.t.Helper()
	r.t.Errorf("rank %d: "+format, append([]any{r.Rank()}, args...)...)
	runtime.Goexit()
}

// skip skips the test. Every rank must call it.
func (r *rank) skip(why string, err error) {
	text := fmt.Sprintf("%s: %v", why, err)
	r.skipReason.Store(&text)
	runtime.Goexit()
}

func (r *rank) wantErr(err, want error) {
	r.t.Helper()
	if !errors.Is(err, want) {
		r.failf("got %v, want %v", err, want)
	}
}

// pool makes a pool with small segments, whose domain is the world.
func (r *rank) pool() *symmem.Pool {
	r.t.Helper()
	return r.poolWith(symmem.PoolOptions{Domain: r.World(), FirstSegment: 4 * mib})
}

func (r *rank) poolWith(o symmem.PoolOptions) *symmem.Pool {
	r.t.Helper()
	p, err := r.NewPool(o)
	r.ok(err)
	return p
}

// closePool closes a pool that has live buffers, which are freed at the end of the test.
func (r *rank) closePool(p *symmem.Pool) {
	r.t.Helper()
	r.cleanups = append(r.cleanups, func() { symmem.FreeAll(p) })
	r.ok(p.Close())
}

func (r *rank) alloc(p *symmem.Pool, bytes int64) symmem.Buffer {
	r.t.Helper()
	b, err := p.Alloc(bytes)
	r.ok(err)
	return b
}

// memoryAt looks up memory by its address, like a caller that does not have the Buffer.
func (r *rank) memoryAt(address uintptr, bytes int64) symmem.Memory {
	m, err := r.Interop().Memory(address, bytes)
	r.ok(err)
	return m
}

// window allocates a buffer and registers it with the world.
func (r *rank) window(p *symmem.Pool, bytes int64) symmem.Buffer {
	r.t.Helper()
	b := r.alloc(p, bytes)
	r.ok(p.Register(r.ctx, r.World()))
	return b
}

// sum all-reduces a buffer in place and waits for the result. After an error, the stream remains
// usable.
func (r *rank) sum(g *symmem.Group, b symmem.Buffer) error {
	m := b.Memory()
	err := g.AllReduce(r.ctx, m, m, b.Size()/4, symmem.Float32, symmem.Sum, nil)
	return cmp.Or(err, r.DefaultStream().Synchronize(r.ctx))
}

func (r *rank) checkSum(g *symmem.Group, b symmem.Buffer) {
	r.t.Helper()
	r.fill(b, float32(g.Rank()+1))
	r.ok(r.sum(g, b))
	r.checkAll(b, float32(g.Size()*(g.Size()+1)/2))
}

// split splits a group by color. A rank whose color is negative skips the split and gets nil.
func (r *rank) split(g *symmem.Group, color int) *symmem.Group {
	r.t.Helper()
	if color < 0 {
		r.ok(g.SkipSplit(r.ctx))
		return nil
	}

	sub, err := g.Split(r.ctx, color, 0)
	r.ok(err)
	return sub
}

func (r *rank) synchronize() {
	r.t.Helper()
	r.ok(r.DefaultStream().Synchronize(r.ctx))
}

func (r *rank) withTimeout(d time.Duration, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(r.ctx, d)
	defer cancel()
	return call(ctx)
}

// expectNoAllocations repeats a call on all ranks in batches, while one rank counts the
// allocations of the process. On a busy machine, background goroutines may also allocate during a
// batch, so the test passes if at least one batch has no allocation.
func (r *rank) expectNoAllocations(countingRank int, call func()) {
	r.t.Helper()
	const batches, turns = 20, 100
	if r.Rank() != countingRank {
		for range batches * (1 + turns) { // AllocsPerRun makes one uncounted call
			call()
		}

		return
	}

	fewest := math.Inf(1)
	for range batches {
		fewest = min(fewest, testing.AllocsPerRun(turns, call))
	}

	if fewest != 0 {
		r.failf("every batch made at least %v allocations per call, want 0 in one batch", fewest)
	}
}

type errorTexts struct {
	mu   sync.Mutex
	text map[int]string // by rank; guarded by mu
}

func (a *errorTexts) add(r *rank, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.text == nil {
		a.text = map[int]string{}
	}

	a.text[r.Rank()] = err.Error()
}

// requireSame fails the test unless the given number of ranks recorded an error, all with the same
// text. It returns the text.
func (a *errorTexts) requireSame(t *testing.T, ranks int) string {
	t.Helper()
	different := map[string]bool{}
	var text string
	for _, text = range a.text {
		different[text] = true
	}

	if len(a.text) != ranks || len(different) != 1 {
		t.Fatalf("got the errors %v, want the same one on %d ranks", a.text, ranks)
	}

	return text
}

// wantDivergence returns the DivergenceError that err wraps. The test fails if there is none.
func (r *rank) wantDivergence(err error) *symmem.DivergenceError {
	r.t.Helper()
	var d *symmem.DivergenceError
	if !errors.As(err, &d) {
		r.failf("got %v, want a DivergenceError", err)
	}

	return d
}

// wantTimeout fails the test unless err is a TimeoutError that names exactly the missing ranks.
func (r *rank) wantTimeout(err error, missing ...int) {
	r.t.Helper()
	var late *symmem.TimeoutError
	if !errors.As(err, &late) {
		r.failf("got %v, want a TimeoutError", err)
	}

	if !equalInts(late.Missing, missing) {
		r.failf("Missing = %v, want %v: %v", late.Missing, missing, err)
	}
}

func equalInts(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}

	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}

	return true
}

// gate lets the ranks of a test wait for each other without symmem.
type gate struct {
	mu      sync.Mutex
	waiting int           // guarded by mu
	open    chan struct{} // replaced each time it opens; guarded by mu
	size    int
}

func newGate(size int) *gate { return &gate{size: size, open: make(chan struct{})} }

// wait returns when all ranks have called it.
func (g *gate) wait(r *rank) {
	g.mu.Lock()
	open := g.open
	if g.waiting++; g.waiting == g.size {
		g.waiting, g.open = 0, make(chan struct{})
		close(open)
	}

	g.mu.Unlock()
	select {
	case <-open:
	case <-time.After(time.Minute):
		r.failf("another rank did not reach the gate")
	}
}

// place formats the segment, offset and size of a buffer.
func place(b symmem.Buffer) string {
	return fmt.Sprintf("%d:%#x+%d", b.Segment(), b.Offset(), b.Size())
}

func join(lines []string) string { return strings.Join(lines, "\n") }

// write copies elements into memory on the default stream and waits for the copy. Unlike View, it
// does not need memory that the CPU can address.
func write[T symmem.Element](r *rank, m symmem.Memory, v []T) {
	r.t.Helper()
	r.ok(r.DefaultStream().Copy(m, symmem.Host(v)))
	r.synchronize()
}

func read[T symmem.Element](r *rank, m symmem.Memory) []T {
	r.t.Helper()
	var zero T
	v := make([]T, m.Bytes()/int64(unsafe.Sizeof(zero)))
	r.ok(r.DefaultStream().Copy(symmem.Host(v), m))
	r.synchronize()
	return v
}

// unregistered allocates memory that no group registers. Collectives on it take the plain path.
func (r *rank) unregistered(bytes int64) symmem.Memory {
	r.t.Helper()
	m, err := r.alloc(r.poolWith(symmem.PoolOptions{FirstSegment: 2 * mib}), bytes).Memory().
		Slice(0, bytes)
	r.ok(err)
	return m
}

func (r *rank) floats(b symmem.Buffer) []float32 {
	r.t.Helper()
	return read[float32](r, b.Memory())
}

func (r *rank) fill(b symmem.Buffer, value float32) {
	r.t.Helper()
	write(r, b.Memory(), slices.Repeat([]float32{value}, int(b.Size()/4)))
}

func (r *rank) checkAll(b symmem.Buffer, want float32) {
	r.t.Helper()
	for i, got := range r.floats(b) {
		if got != want {
			r.failf("element %d = %v, want %v", i, got, want)
		}
	}
}

// runWithFault runs a function that makes a group fail, and then checks that all ranks can create
// and use a new group.
func runWithFault(t *testing.T, n int, o symmem.Options, fault func(r *rank)) {
	t.Helper()
	runRanks(t, n, o, func(r *rank) {
		spare := r.split(r.World(), 0)
		fault(r)
		if err := checkNewGroup(r.ctx, r.Runtime, spare); err != nil {
			r.failf("after the fault: %v", err)
		}
	})
}

// checkNewGroup splits a new group off parent and checks a sum in it, as a program does to recover
// from a fault. The fault must not have affected parent.
func checkNewGroup(ctx context.Context, rt *symmem.Runtime, parent *symmem.Group) error {
	g, err := parent.Split(ctx, 0, 0)
	if err != nil {
		return err
	}

	return errors.Join(symmetricSum(ctx, rt, g), g.Close())
}

func symmetricSum(ctx context.Context, rt *symmem.Runtime, g *symmem.Group) error {
	const count = 1024
	p, err := rt.NewPool(symmem.PoolOptions{Domain: g, FirstSegment: 2 * mib})
	if err != nil {
		return err
	}

	b, err := p.Alloc(4 * count)
	if err != nil {
		return err
	}

	m, s, v := b.Memory(), rt.DefaultStream(), slices.Repeat([]float32{1}, count)
	if err := errors.Join(
		s.Copy(m, symmem.Host(v)),
		g.AllReduce(ctx, m, m, count, symmem.Float32, symmem.Sum, s),
		s.Copy(symmem.Host(v), m),
		s.Synchronize(ctx),
		b.Free(),
		p.Close(),
	); err != nil {
		return err
	}

	for i, got := range v {
		if got != float32(g.Size()) {
			return fmt.Errorf("element %d of the sum = %v, want %d", i, got, g.Size())
		}
	}

	return nil
}
