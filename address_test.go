package symmem_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"symmem"
)

func TestAnAddressIsResolvedToItsBuffer(t *testing.T) {
	together(t, 1, symmem.Options{}, func(r *rank) {
		p, other := r.pool(), r.pool()
		a, b, gone := r.alloc(p, 4096), r.alloc(other, 8192), r.alloc(p, 4096)
		last := r.alloc(p, 512)
		r.ok(gone.Free())
		elsewhere := symmem.Host(make([]byte, 4096))
		for _, row := range []struct {
			name    string
			address uintptr
			bytes   int64
			pool    *symmem.Pool
			err     error
		}{
			{"a whole buffer", a.Address(), 4096, p, nil},
			{"the middle of a buffer", a.Address() + 100, 200, p, nil},
			{"the end of a buffer", b.Address() + 8191, 1, other, nil},
			{"one byte too many", b.Address() + 8191, 2, nil, symmem.ErrOutOfRange},
			{"into the next buffer", a.Address(), 4097, nil, symmem.ErrOutOfRange},
			{"a buffer that was freed", gone.Address(), 1, nil, symmem.ErrFreed},
			{"behind the last buffer", last.Address() + 512, 1, nil, symmem.ErrFreed},
			{"no bytes", gone.Address(), 0, nil, nil},
			{"a negative length", a.Address(), -1, nil, symmem.ErrInvalid},
			{"an absurd length", a.Address(), 1 << 60, nil, symmem.ErrInvalid},
			{"memory of no pool", elsewhere.Address(), 4096, nil, nil},
		} {
			m, err := r.Interop().Memory(row.address, row.bytes)
			if !errors.Is(err, row.err) || m.Pool() != row.pool {
				r.failf("%s: pool %p, %v", row.name, m.Pool(), err)
			}
			if err == nil && (m.Address() != row.address || m.Bytes() != row.bytes) {
				r.failf("%s: %d bytes at %#x", row.name, m.Bytes(), m.Address())
			}
		}
		found, err := r.Interop().Buffer(b.Address() + 8000)
		r.ok(err)
		if found != b {
			r.failf("found %v", found)
		}
		_, err = r.Interop().Buffer(elsewhere.Address())
		r.is(err, symmem.ErrForeign)
		_, err = r.Interop().Buffer(gone.Address())
		r.is(err, symmem.ErrFreed)
	})
}

// TestATensorTakesTheWayOfABuffer makes a collective on the middle of a buffer, by address.
func TestATensorTakesTheWayOfABuffer(t *testing.T) {
	together(t, 2, symmem.Options{Path: symmem.PathWindow}, func(r *rank) {
		w, s := r.World(), r.stream()
		b := r.alloc(r.pool(), mib)
		r.fill(b, float32(r.Rank()+1))
		m := r.named(b.Address()+4096, 4096)
		e, err := w.Explain(symmem.OpAllReduce, m, m, 1024, symmem.Float32)
		r.ok(err)
		if !e.Registers || e.Path != "window" || !r.Interop().Registers(w, symmem.OpAllReduce, m, m, s) {
			r.failf("before the call: %v", e)
		}
		add := func(m symmem.Memory, count int64) error {
			return w.AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, s)
		}
		r.ok(add(m, 1024))
		if !w.IsSymmetric(m) || r.Interop().Registers(w, symmem.OpAllReduce, m, m, s) {
			r.failf("the call has registered nothing")
		}
		r.is(add(m, 1025), symmem.ErrOutOfRange)
		r.ok(s.Synchronize(r.ctx))
		if got := read[float32](r, r.named(b.Address()+4096, 4096)); got[0] != 3 || got[1023] != 3 {
			r.failf("the sum is %v, %v", got[0], got[1023])
		}
		r.ok(b.Free())
		if d := b.Pool().Stats().Deferred; d != 0 {
			r.failf("%d bytes wait for a stream, whose use is the caller's to know", d)
		}
		r.is(add(m, 1024), symmem.ErrFreed)
	})
}

// TestACallIsNotQueuedOnceItsContextHasEnded ends the context while the call registers memory.
func TestACallIsNotQueuedOnceItsContextHasEnded(t *testing.T) {
	together(t, 2, symmem.Options{}, func(r *rank) {
		ctx, cancel := context.WithCancel(r.ctx)
		remove := r.Interop().Observe(symmem.Observer{Register: func(symmem.WindowEvent) { cancel() }})
		b := r.alloc(r.pool(), mib)
		add := func(ctx context.Context) error {
			m := b.Memory()
			return r.World().AllReduce(ctx, m, m, 1024, symmem.Float32, symmem.Sum, nil)
		}
		r.fill(b, 1)
		r.is(add(ctx), context.Canceled)
		remove()
		r.holds(b, 1)
		r.ok(add(r.ctx))
		r.synchronize()
	})
}

// TestCallIsNotQueuedIfContextEndsDuringRealignment ends the context while the call realigns a pool
// after a fault, and registers memory, for a buffer that is named by its address alone.
func TestCallIsNotQueuedIfContextEndsDuringRealignment(t *testing.T) {
	together(t, 2, symmem.Options{Check: symmem.CheckRegistration}, func(r *rank) {
		p := r.pool()
		r.ok(r.window(p, 4*mib).Free())
		g := r.split(r.World(), 0)
		g.Abort()
		r.is(g.Cause(r.ctx), symmem.ErrAborted)
		b := r.alloc(p, mib)
		r.alloc(p, 64*mib) // in a segment that the realignment registers
		m := symmem.ForeignMemory(b.Address(), b.Size())
		add := func(ctx context.Context) error {
			return r.World().AllReduce(ctx, m, m, 1024, symmem.Float32, symmem.Sum, nil)
		}
		ctx, cancel := context.WithCancel(r.ctx)
		remove := r.Interop().Observe(symmem.Observer{Register: func(symmem.WindowEvent) { cancel() }})
		r.fill(b, 1)
		r.is(add(ctx), context.Canceled)
		remove()
		r.holds(b, 1)
		r.ok(add(r.ctx))
		r.synchronize()
	})
}

func TestARetiredBufferIsFoundNoMore(t *testing.T) {
	together(t, 1, symmem.Options{}, func(r *rank) {
		i, p := r.Interop(), r.pool()
		a, b := r.alloc(p, 4096), r.alloc(p, 512)
		r.live(p, 2, 4608)
		_, err := i.Retire(a.Address() + 512)
		r.is(err, symmem.ErrDoubleFree)
		got, err := i.Retire(a.Address())
		r.ok(err)
		if got != a {
			r.failf("retired %v", got)
		}
		r.live(p, 1, 512)
		_, err = i.Retire(a.Address())
		r.is(err, symmem.ErrDoubleFree)
		_, err = i.Memory(a.Address(), 1)
		r.is(err, symmem.ErrFreed)
		if c := r.alloc(p, 4096); c.Address() == a.Address() {
			r.failf("memory is given away that was not freed")
		}
		r.ok(a.Free())
		if c := r.alloc(p, 4096); c.Address() != a.Address() {
			r.failf("freed memory is not given away")
		}
		r.named(a.Address(), 4096)
		_, err = i.Retire(symmem.Host(make([]byte, 512)).Address())
		r.is(err, symmem.ErrForeign)
		r.ok(b.Free())
	})
}

// live compares what lookups by address know of a pool.
func (r *rank) live(p *symmem.Pool, buffers int, bytes int64) {
	if n, size := r.Interop().Live(p); n != buffers || size != bytes {
		r.failf("%d buffers of %d bytes are live", n, size)
	}
}

// TestBuffersOfAClosedPoolAreFoundUntilTheyAreFreed also looks an address up that the pool gave
// back.
func TestBuffersOfAClosedPoolAreFoundUntilTheyAreFreed(t *testing.T) {
	together(t, 1, symmem.Options{}, func(r *rank) {
		i, p := r.Interop(), r.pool()
		a, gone := r.alloc(p, 4096), r.alloc(p, 4096)
		r.ok(gone.Free())
		beyond := a.Address() + 1<<29
		_, err := i.Memory(beyond, 1)
		r.is(err, symmem.ErrFreed)
		r.ok(p.Close())
		if m := r.named(a.Address(), 4096); m.Pool() != nil {
			r.failf("memory of a closed pool is a collective's to register")
		}
		_, err = i.Memory(gone.Address(), 1)
		r.is(err, symmem.ErrFreed)
		_, err = i.Buffer(beyond)
		r.is(err, symmem.ErrForeign)
		if n, _ := i.Live(nil); n != 1 {
			r.failf("%d buffers are live", n)
		}
		b, err := i.Retire(a.Address())
		r.ok(err)
		r.ok(b.Free())
		_, err = i.Buffer(a.Address())
		r.is(err, symmem.ErrForeign)
	})
}

// TestLookupsRaceWithFrees looks addresses up while another goroutine frees the buffers there and
// makes new ones: a lookup finds a buffer or ErrFreed, and a call on what it found works on that
// buffer or is refused, never on the next one at the address.
func TestLookupsRaceWithFrees(t *testing.T) {
	together(t, 1, symmem.Options{}, func(r *rank) {
		const rounds = 2000
		p := r.pool()
		address := r.alloc(p, 4096)
		start := address.Address()
		found := make(chan symmem.Memory, 16)
		var freeing sync.WaitGroup
		freeing.Go(func() {
			defer close(found)
			for range rounds {
				m, err := r.Interop().Memory(start+512, 1024)
				if err == nil {
					found <- m
				} else if !errors.Is(err, symmem.ErrFreed) {
					t.Error(err)
				}
			}
		})
		for m := range found {
			before := address
			r.ok(before.Free())
			r.is(r.World().AllReduce(r.ctx, m, m, 256, symmem.Float32, symmem.Sum, nil), symmem.ErrFreed)
			address = r.alloc(p, 4096)
			if address.Address() != start {
				r.failf("the next buffer lies at %#x", address.Address())
			}
			// Memory found for an earlier buffer is still refused.
			r.is(r.World().AllReduce(r.ctx, m, m, 256, symmem.Float32, symmem.Sum, nil), symmem.ErrFreed)
		}
		freeing.Wait()
		r.ok(address.Free())
	})
}

// TestAddressesAreFoundAsInAModel compares lookups with a list, while hundreds of buffers come and
// go, some of which a caller retires first.
func TestAddressesAreFoundAsInAModel(t *testing.T) {
	together(t, 1, symmem.Options{}, func(r *rank) {
		i := r.Interop()
		rapid.Check(t, func(t *rapid.T) {
			p := r.pool()
			defer r.closePool(p)
			var live []symmem.Buffer
			random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
			indexed := rapid.IntRange(0, 300).Draw(t, "buffers before the first lookup")
			for step := range 1000 {
				if n := len(live); n > 0 && random.IntN(600) < n {
					at := random.IntN(n)
					b := live[at]
					live = slices.Delete(live, at, at+1)
					if random.IntN(2) == 0 && step >= indexed {
						got, err := i.Retire(b.Address())
						r.ok(err)
						b = got
					}
					r.ok(b.Free())
				} else {
					live = append(live, r.alloc(p, 1+random.Int64N(4096)))
				}
				if step < indexed {
					continue
				}
				var bytes int64
				for _, b := range live {
					bytes += b.Size()
				}
				r.live(p, len(live), bytes)
				b := live[max(0, random.IntN(len(live)+1)-1)%max(1, len(live)):]
				if len(b) == 0 {
					continue
				}
				got, err := i.Buffer(b[0].Address() + uintptr(random.Int64N(b[0].Size())))
				r.ok(err)
				if got != b[0] {
					t.Fatalf("found %v of %v", got, b[0])
				}
			}
			for _, b := range live {
				r.ok(b.Free())
			}
			r.live(p, 0, 0)
		})
	})
}

func TestALookupMakesNoGarbage(t *testing.T) {
	together(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.alloc(p, 4096)
		lookup := func() { r.named(b.Address()+8, 8) }
		if n := testing.AllocsPerRun(100, lookup); n > 0 {
			r.failf("a lookup makes %v allocations", n)
		}
		churn := func() { r.ok(r.alloc(p, 4096).Free()) }
		if n := testing.AllocsPerRun(100, churn); n > 0 {
			r.failf("an Alloc and a Free make %v allocations", n)
		}
	})
}

func BenchmarkMemoryOfAnAddress(b *testing.B) {
	runtimes, err := symmem.OpenLocal(b.Context(), 1, symmem.Options{})
	if err != nil {
		b.Fatal(err)
	}
	rt := runtimes[0]
	defer func() { _ = rt.Close() }()
	defer symmem.FreeLive(rt)
	for _, buffers := range []int{1, 100, 10_000, 100_000} {
		b.Run(fmt.Sprintf("buffers=%d", buffers), func(b *testing.B) {
			p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
			if err != nil {
				b.Fatal(err)
			}
			all := make([]symmem.Buffer, buffers)
			for i := range all {
				if all[i], err = p.Alloc(4096); err != nil {
					b.Fatal(err)
				}
			}
			address := all[buffers/2].Address() + 512
			b.ReportAllocs()
			for b.Loop() {
				if _, err := rt.Interop().Memory(address, 1024); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
