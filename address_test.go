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

func TestMemoryAtAddress(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p, other := r.pool(), r.pool()
		a, b, freed := r.alloc(p, 4096), r.alloc(other, 8192), r.alloc(p, 4096)
		last := r.alloc(p, 512)
		r.ok(freed.Free())
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
			{"past the end of a buffer", b.Address() + 8191, 2, nil, symmem.ErrOutOfRange},
			{"into the next buffer", a.Address(), 4097, nil, symmem.ErrOutOfRange},
			{"a freed buffer", freed.Address(), 1, nil, symmem.ErrFreed},
			{"after the last buffer", last.Address() + 512, 1, nil, symmem.ErrFreed},
			{"no bytes", freed.Address(), 0, nil, nil},
			{"a negative length", a.Address(), -1, nil, symmem.ErrInvalid},
			{"a huge length", a.Address(), 1 << 60, nil, symmem.ErrInvalid},
			{"memory outside pools", elsewhere.Address(), 4096, nil, nil},
		} {
			m, err := r.Interop().Memory(row.address, row.bytes)
			if !errors.Is(err, row.err) || m.Pool() != row.pool {
				r.failf("%s: got pool %p, %v; want %p, %v", row.name, m.Pool(), err, row.pool, row.err)
			}

			if err == nil && (m.Address() != row.address || m.Bytes() != row.bytes) {
				r.failf("%s: got %d bytes at %#x, want %d at %#x", row.name, m.Bytes(), m.Address(),
					row.bytes, row.address)
			}
		}

		found, err := r.Interop().Buffer(b.Address() + 8000)
		r.ok(err)
		if found != b {
			r.failf("Buffer(%#x) = %v, want %v", b.Address()+8000, found, b)
		}

		_, err = r.Interop().Buffer(elsewhere.Address())
		r.wantErr(err, symmem.ErrForeign)
		_, err = r.Interop().Buffer(freed.Address())
		r.wantErr(err, symmem.ErrFreed)
	})
}

// TestCollectiveOnMemoryByAddress passes a collective the address of memory in the middle of a
// buffer.
func TestCollectiveOnMemoryByAddress(t *testing.T) {
	runRanks(t, 2, symmem.Options{Path: symmem.PathWindow}, func(r *rank) {
		w, s := r.World(), r.stream()
		b := r.alloc(r.pool(), mib)
		r.fill(b, float32(r.Rank()+1))
		m := r.memoryAt(b.Address()+4096, 4096)
		e, err := w.Explain(symmem.OpAllReduce, m, m, 1024, symmem.Float32)
		r.ok(err)
		if !e.Registers || e.Path != "window" || !r.Interop().Registers(w, symmem.OpAllReduce, m, m, s) {
			r.failf("Explain = %v, want the window path after a registration", e)
		}

		add := func(m symmem.Memory, count int64) error {
			return w.AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, s)
		}
		r.ok(add(m, 1024))
		if !w.IsSymmetric(m) || r.Interop().Registers(w, symmem.OpAllReduce, m, m, s) {
			r.failf("the call did not register the memory")
		}

		r.wantErr(add(m, 1025), symmem.ErrOutOfRange)
		r.ok(s.Synchronize(r.ctx))
		if got := read[float32](r, r.memoryAt(b.Address()+4096, 4096)); got[0] != 3 || got[1023] != 3 {
			r.failf("got %v and %v as the first and last sums, want 3", got[0], got[1023])
		}

		r.ok(b.Free())
		if d := b.Pool().Stats().Deferred; d != 0 {
			r.failf("%d bytes are deferred, want 0: the caller tracks uses of memory by address", d)
		}

		r.wantErr(add(m, 1024), symmem.ErrFreed)
	})
}

func TestCallIsNotQueuedIfContextEndsDuringRegistration(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		ctx, cancel := context.WithCancel(r.ctx)
		remove := r.Interop().Observe(symmem.Observer{Register: func(symmem.WindowEvent) { cancel() }})
		b := r.alloc(r.pool(), mib)
		add := func(ctx context.Context) error {
			m := b.Memory()
			return r.World().AllReduce(ctx, m, m, 1024, symmem.Float32, symmem.Sum, nil)
		}
		r.fill(b, 1)
		r.wantErr(add(ctx), context.Canceled)
		remove()
		r.checkAll(b, 1)
		r.ok(add(r.ctx))
		r.synchronize()
	})
}

// TestCallIsNotQueuedIfContextEndsDuringRealignment cancels the context of a call while the call
// realigns a pool after a fault and registers memory. The call's memory is passed by address.
func TestCallIsNotQueuedIfContextEndsDuringRealignment(t *testing.T) {
	runRanks(t, 2, symmem.Options{Check: symmem.CheckRegistration}, func(r *rank) {
		p := r.pool()
		r.ok(r.window(p, 4*mib).Free())
		g := r.split(r.World(), 0)
		g.Abort()
		r.wantErr(g.Cause(r.ctx), symmem.ErrAborted)
		b := r.alloc(p, mib)
		r.alloc(p, 64*mib) // the realignment registers the segment of this buffer
		m := symmem.ForeignMemory(b.Address(), b.Size())
		add := func(ctx context.Context) error {
			return r.World().AllReduce(ctx, m, m, 1024, symmem.Float32, symmem.Sum, nil)
		}
		ctx, cancel := context.WithCancel(r.ctx)
		remove := r.Interop().Observe(symmem.Observer{Register: func(symmem.WindowEvent) { cancel() }})
		r.fill(b, 1)
		r.wantErr(add(ctx), context.Canceled)
		remove()
		r.checkAll(b, 1)
		r.ok(add(r.ctx))
		r.synchronize()
	})
}

func TestLookupMissesRetiredBuffer(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		i, p := r.Interop(), r.pool()
		a, b := r.alloc(p, 4096), r.alloc(p, 512)
		r.checkLive(p, 2, 4608)
		_, err := i.Retire(a.Address() + 512)
		r.wantErr(err, symmem.ErrDoubleFree)
		got, err := i.Retire(a.Address())
		r.ok(err)
		if got != a {
			r.failf("Retire = %v, want %v", got, a)
		}

		r.checkLive(p, 1, 512)
		_, err = i.Retire(a.Address())
		r.wantErr(err, symmem.ErrDoubleFree)
		_, err = i.Memory(a.Address(), 1)
		r.wantErr(err, symmem.ErrFreed)
		if c := r.alloc(p, 4096); c.Address() == a.Address() {
			r.failf("Alloc returned memory that has been retired but not freed")
		}

		r.ok(a.Free())
		if c := r.alloc(p, 4096); c.Address() != a.Address() {
			r.failf("Alloc = %#x, want the freed memory at %#x", c.Address(), a.Address())
		}

		r.memoryAt(a.Address(), 4096)
		_, err = i.Retire(symmem.Host(make([]byte, 512)).Address())
		r.wantErr(err, symmem.ErrForeign)
		r.ok(b.Free())
	})
}

func (r *rank) checkLive(p *symmem.Pool, buffers int, bytes int64) {
	if n, size := r.Interop().Live(p); n != buffers || size != bytes {
		r.failf("Live = %d buffers, %d bytes; want %d, %d", n, size, buffers, bytes)
	}
}

// TestLookupInClosedPool checks that lookups in a closed pool find live buffers until they are
// freed, and that an address which the closed pool has released belongs to no pool.
func TestLookupInClosedPool(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		i, p := r.Interop(), r.pool()
		a, freed := r.alloc(p, 4096), r.alloc(p, 4096)
		r.ok(freed.Free())
		beyond := a.Address() + 1<<29
		_, err := i.Memory(beyond, 1)
		r.wantErr(err, symmem.ErrFreed)
		r.ok(p.Close())
		if m := r.memoryAt(a.Address(), 4096); m.Pool() != nil {
			r.failf("memory of a closed pool has pool %p, want nil", m.Pool())
		}

		_, err = i.Memory(freed.Address(), 1)
		r.wantErr(err, symmem.ErrFreed)
		_, err = i.Buffer(beyond)
		r.wantErr(err, symmem.ErrForeign)
		if n, _ := i.Live(nil); n != 1 {
			r.failf("Live = %d buffers, want 1", n)
		}

		b, err := i.Retire(a.Address())
		r.ok(err)
		r.ok(b.Free())
		_, err = i.Buffer(a.Address())
		r.wantErr(err, symmem.ErrForeign)
	})
}

// TestLookupsRaceWithFrees looks up an address while another goroutine frees the buffer there and
// allocates the next one. Each lookup must return either memory or ErrFreed. Once the buffer that a
// lookup found has been freed, calls on the memory must fail, even if another buffer has the same
// address by then.
func TestLookupsRaceWithFrees(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		const rounds = 2000
		p := r.pool()
		b := r.alloc(p, 4096)
		start := b.Address()
		found := make(chan symmem.Memory, 16)
		var lookups sync.WaitGroup
		lookups.Go(func() {
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
			r.ok(b.Free())
			r.wantErr(reduce(r, m, 256, symmem.Float32, symmem.Sum), symmem.ErrFreed)
			b = r.alloc(p, 4096)
			if b.Address() != start {
				r.failf("the next buffer is at %#x, want %#x", b.Address(), start)
			}

			// m refers to the freed buffer, not to the new one at the same address.
			r.wantErr(reduce(r, m, 256, symmem.Float32, symmem.Sum), symmem.ErrFreed)
		}

		lookups.Wait()
		r.ok(b.Free())
	})
}

// TestLookupsMatchModel allocates and frees hundreds of buffers, some of them after Retire, and
// compares lookups with a list of the live buffers.
func TestLookupsMatchModel(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		i := r.Interop()
		rapid.Check(t, func(t *rapid.T) {
			p := r.pool()
			defer r.closePool(p)
			var live []symmem.Buffer
			random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
			firstLookup := rapid.IntRange(0, 300).Draw(t, "steps before the first lookup")
			for step := range 1000 {
				if n := len(live); n > 0 && random.IntN(600) < n {
					index := random.IntN(n)
					b := live[index]
					live = slices.Delete(live, index, index+1)
					if random.IntN(2) == 0 && step >= firstLookup {
						got, err := i.Retire(b.Address())
						r.ok(err)
						b = got
					}

					r.ok(b.Free())
				} else {
					live = append(live, r.alloc(p, 1+random.Int64N(4096)))
				}

				if step < firstLookup {
					continue
				}

				var bytes int64
				for _, b := range live {
					bytes += b.Size()
				}

				r.checkLive(p, len(live), bytes)
				b := live[max(0, random.IntN(len(live)+1)-1)%max(1, len(live)):]
				if len(b) == 0 {
					continue
				}

				got, err := i.Buffer(b[0].Address() + uintptr(random.Int64N(b[0].Size())))
				r.ok(err)
				if got != b[0] {
					t.Fatalf("Buffer of an address in %v = %v, want that buffer", b[0], got)
				}
			}

			for _, b := range live {
				r.ok(b.Free())
			}

			r.checkLive(p, 0, 0)
		})
	})
}

func TestLookupDoesNotAllocate(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.alloc(p, 4096)
		lookup := func() { r.memoryAt(b.Address()+8, 8) }
		if n := testing.AllocsPerRun(100, lookup); n > 0 {
			r.failf("a lookup makes %v allocations, want 0", n)
		}

		churn := func() { r.ok(r.alloc(p, 4096).Free()) }
		if n := testing.AllocsPerRun(100, churn); n > 0 {
			r.failf("Alloc and Free make %v allocations, want 0", n)
		}
	})
}

func BenchmarkMemoryAtAddress(b *testing.B) {
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
