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

// rank is one rank of a test. Its methods end the rank, and fail the test, where a call that must
// succeed does not.
type rank struct {
	*symmem.Runtime
	t   *testing.T
	ctx context.Context
	// unable is why the backend cannot do the test.
	unable *atomic.Pointer[string]
	// held are run when the rank ends: they end what streams are busy with, which closing waits for,
	// and free what a closed pool keeps.
	held []func()
}

// together runs a function on every rank of a local world and closes it. A rank that fails aborts
// the world, so that the others do not wait for it. Where neither options nor the environment
// choose the path of collectives it is the window path, as far as the backend has it.
func together(t *testing.T, n int, o symmem.Options, f func(r *rank)) {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 20 * time.Second
	}
	if o.Path == symmem.PathDefault && o.Tuning == "" && os.Getenv("SYMMEM_PATH") == "" {
		o.Path = symmem.PathWindow
	}
	runtimes := open(t, n, o)
	var unable atomic.Pointer[string]
	eachRank(runtimes, func(rt *symmem.Runtime) {
		r := &rank{Runtime: rt, t: t, ctx: t.Context(), unable: &unable}
		finished := false
		defer func() {
			for _, release := range r.held {
				release()
			}
			if !finished && unable.Load() == nil {
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
	if why := unable.Load(); why != nil && !t.Failed() {
		t.Skip(*why)
	}
}

// eachRank runs a function on all ranks at once.
func eachRank(runtimes []*symmem.Runtime, f func(*symmem.Runtime)) {
	var ranks sync.WaitGroup
	for _, rt := range runtimes {
		ranks.Go(func() { f(rt) })
	}
	ranks.Wait()
}

// ok ends the rank if there is an error.
func (r *rank) ok(err error) {
	if err != nil {
		r.t.Helper()
		r.failf("%v", err)
	}
}

// failf fails the test and ends the rank.
func (r *rank) failf(format string, args ...any) {
	r.t.Helper()
	r.t.Errorf("rank %d: "+format, append([]any{r.Rank()}, args...)...)
	runtime.Goexit()
}

// skip ends the rank, and skips the test. All ranks do it.
func (r *rank) skip(why string, err error) {
	text := fmt.Sprintf("%s: %v", why, err)
	r.unable.Store(&text)
	runtime.Goexit()
}

// is ends the rank unless the error is the wanted one.
func (r *rank) is(err, want error) {
	r.t.Helper()
	if !errors.Is(err, want) {
		r.failf("got %v, want %v", err, want)
	}
}

// pool makes a pool of the world with small segments.
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

// closePool closes a pool whose buffers are live, and frees them when the rank ends.
func (r *rank) closePool(p *symmem.Pool) {
	r.t.Helper()
	r.held = append(r.held, func() { symmem.FreeAll(p) })
	r.ok(p.Close())
}

func (r *rank) alloc(p *symmem.Pool, bytes int64) symmem.Buffer {
	r.t.Helper()
	b, err := p.Alloc(bytes)
	r.ok(err)
	return b
}

// named returns the memory at an address, as a caller gets it who knows no buffer.
func (r *rank) named(address uintptr, bytes int64) symmem.Memory {
	m, err := r.Interop().Memory(address, bytes)
	r.ok(err)
	return m
}

// window returns a buffer in a window of the world.
func (r *rank) window(p *symmem.Pool, bytes int64) symmem.Buffer {
	r.t.Helper()
	b := r.alloc(p, bytes)
	r.ok(p.Register(r.ctx, r.World()))
	return b
}

// sum adds up a whole buffer over the group's ranks, in place, and waits for it. The stream runs
// again after an error.
func (r *rank) sum(g *symmem.Group, b symmem.Buffer) error {
	m := b.Memory()
	err := g.AllReduce(r.ctx, m, m, b.Size()/4, symmem.Float32, symmem.Sum, nil)
	return cmp.Or(err, r.DefaultStream().Synchronize(r.ctx))
}

// sums ends the rank unless the group adds up a buffer correctly.
func (r *rank) sums(g *symmem.Group, b symmem.Buffer) {
	r.t.Helper()
	r.fill(b, float32(g.Rank()+1))
	r.ok(r.sum(g, b))
	r.holds(b, float32(g.Size()*(g.Size()+1)/2))
}

// split makes a group of the ranks that give one color; a negative one gets nil.
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

// synchronize waits for the default stream.
func (r *rank) synchronize() {
	r.t.Helper()
	r.ok(r.DefaultStream().Synchronize(r.ctx))
}

// within bounds a call that is expected to wait for a rank that does not come.
func (r *rank) within(d time.Duration, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(r.ctx, d)
	defer cancel()
	return call(ctx)
}

// expectNoAllocations makes all ranks repeat a call, while one rank counts what the process
// allocates. On a busy machine a batch of calls takes long, and watchers allocate meanwhile, so one
// batch without an allocation is enough.
func (r *rank) expectNoAllocations(counting int, call func()) {
	r.t.Helper()
	const batches, turns = 20, 100
	if r.Rank() != counting {
		for range batches * (1 + turns) { // AllocsPerRun makes one call before it counts
			call()
		}
		return
	}
	least := math.Inf(1)
	for range batches {
		least = min(least, testing.AllocsPerRun(turns, call))
	}
	if least != 0 {
		r.failf("every batch of calls makes at least %v allocations per call", least)
	}
}

// answers collects what each rank got, to compare it.
type answers struct {
	mu   sync.Mutex
	text map[int]string // guarded by mu
}

// give notes a rank's error.
func (a *answers) give(r *rank, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.text == nil {
		a.text = map[int]string{}
	}
	a.text[r.Rank()] = err.Error()
}

// alike fails the test unless so many ranks have answered, all with one text, and returns it.
func (a *answers) alike(t *testing.T, ranks int) string {
	t.Helper()
	different := map[string]bool{}
	var text string
	for _, text = range a.text {
		different[text] = true
	}
	if len(a.text) != ranks || len(different) != 1 {
		t.Fatalf("%d ranks must say the same: %v", ranks, a.text)
	}
	return text
}

// diverged ends the rank unless an error is a DivergenceError.
func (r *rank) diverged(err error) *symmem.DivergenceError {
	r.t.Helper()
	var d *symmem.DivergenceError
	if !errors.As(err, &d) {
		r.failf("got %v, want a DivergenceError", err)
	}
	return d
}

// late ends the rank unless an error is a TimeoutError that names exactly these ranks.
func (r *rank) late(err error, missing ...int) {
	r.t.Helper()
	var late *symmem.TimeoutError
	if !errors.As(err, &late) {
		r.failf("got %v, want a TimeoutError", err)
	}
	if !equalInts(late.Missing, missing) {
		r.failf("%v names ranks %v, want %v", err, late.Missing, missing)
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

// gate is a place where ranks of a test wait for each other outside symmem.
type gate struct {
	mu      sync.Mutex
	waiting int           // guarded by mu
	open    chan struct{} // replaced each time it opens; guarded by mu
	size    int
}

func newGate(size int) *gate { return &gate{size: size, open: make(chan struct{})} }

// pass returns when all ranks have come.
func (g *gate) pass(r *rank) {
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
		r.failf("the others do not come")
	}
}

// place writes where a buffer lies.
func place(b symmem.Buffer) string {
	return fmt.Sprintf("%d:%#x+%d", b.Segment(), b.Offset(), b.Size())
}

func join(lines []string) string { return strings.Join(lines, "\n") }

// Tests read and write device memory by copies of Go slices, as programs do that run on every
// backend. View is for backends whose memory the processor can address.

// write copies elements into memory, behind the work of the default stream, and waits for that.
func write[T symmem.Element](r *rank, m symmem.Memory, v []T) {
	r.t.Helper()
	r.ok(r.DefaultStream().Copy(m, symmem.Host(v)))
	r.synchronize()
}

// read copies memory out, behind the work of the default stream, and waits for that.
func read[T symmem.Element](r *rank, m symmem.Memory) []T {
	r.t.Helper()
	var zero T
	v := make([]T, m.Bytes()/int64(unsafe.Sizeof(zero)))
	r.ok(r.DefaultStream().Copy(symmem.Host(v), m))
	r.synchronize()
	return v
}

// plain is memory that no group registers: its collectives take the plain path.
func (r *rank) plain(bytes int64) symmem.Memory {
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

// fill sets every element of a buffer.
func (r *rank) fill(b symmem.Buffer, value float32) {
	r.t.Helper()
	write(r, b.Memory(), slices.Repeat([]float32{value}, int(b.Size()/4)))
}

// holds ends the rank unless every element of a buffer is the given value.
func (r *rank) holds(b symmem.Buffer, want float32) {
	r.t.Helper()
	for i, got := range r.floats(b) {
		if got != want {
			r.failf("element %d is %v, want %v", i, got, want)
		}
	}
}

// surviving is together for a fault: after it every rank lives and goes on with a new group.
func surviving(t *testing.T, n int, o symmem.Options, fault func(r *rank)) {
	t.Helper()
	together(t, n, o, func(r *rank) {
		spare := r.split(r.World(), 0)
		fault(r)
		if err := goOn(r.ctx, r.Runtime, spare); err != nil {
			r.failf("after the fault: %v", err)
		}
	})
}

// goOn makes a group, as programs do after a fault, and computes on it. The parent is a group that
// the fault has not met.
func goOn(ctx context.Context, rt *symmem.Runtime, parent *symmem.Group) error {
	g, err := parent.Split(ctx, 0, 0)
	if err != nil {
		return err
	}
	return errors.Join(symmetricSum(ctx, rt, g), g.Close())
}

// symmetricSum adds up a buffer of a new pool over the ranks of a group.
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
			return fmt.Errorf("element %d of the sum is %v, want %d", i, got, g.Size())
		}
	}
	return nil
}
