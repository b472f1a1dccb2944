package symmem_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"

	"symmem"
)

func (r *rank) stream() *symmem.Stream {
	r.t.Helper()
	s, err := r.NewStream()
	r.ok(err)
	return s
}

// hold keeps a stream busy until release is called, or until the end of the test.
func (r *rank) hold(s *symmem.Stream) (release func()) {
	r.t.Helper()
	released := make(chan struct{})
	r.ok(s.Host(func() { <-released }))
	release = sync.OnceFunc(func() { close(released) })
	r.cleanups = append(r.cleanups, release)
	return release
}

func TestBlockIsReusedAfterOtherStreamsWork(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		other := r.stream()
		b := r.window(p, mib)
		release := r.hold(other)
		r.ok(other.Fill(b.Memory(), 7))
		r.ok(b.Free())
		if s := p.Stats(); s.Deferred != mib || s.Used != mib {
			r.failf("got %+v, want 1 MiB deferred and used", s)
		}

		c := r.alloc(p, mib)
		if c.Address() == b.Address() {
			r.failf("Alloc returned a block that another stream uses")
		}

		release()
		r.ok(other.Synchronize(r.ctx))
		if s := p.Stats(); s.Deferred != 0 || s.Used != mib {
			r.failf("got %+v, want nothing deferred and 1 MiB used", s)
		}

		d := r.alloc(p, mib)
		if d.Address() != b.Address() {
			r.failf("the new block is at %#x, want %#x", d.Address(), b.Address())
		}

		r.ok(r.World().Check(r.ctx))
	})
}

// TestUseOnOutsideGroup uses a buffer in a group that does not contain rank 2. If rank 2 does not
// call UseOn, it places the next buffer elsewhere.
func TestUseOnOutsideGroup(t *testing.T) {
	for _, useOn := range []bool{true, false} {
		t.Run(fmt.Sprintf("UseOn %v", useOn), func(t *testing.T) {
			runRanks(t, 3, symmem.Options{}, func(r *rank) {
				p, s := r.pool(), r.stream()
				b := r.window(p, mib)
				g := r.split(r.World(), r.Rank()/2)
				if m := b.Memory(); r.Rank() < 2 {
					r.ok(g.AllReduce(r.ctx, m, m, 100, symmem.Float32, symmem.Sum, s))
				} else if useOn {
					r.ok(b.UseOn(s))
				}

				r.ok(b.Free())
				r.alloc(p, mib)
				r.ok(s.Synchronize(r.ctx))
				if err := r.World().Check(r.ctx); !useOn {
					r.wantDivergence(err)
				} else {
					r.ok(err)
				}
			})
		})
	}
}

func TestReuseUnderPressureIgnoresTiming(t *testing.T) {
	var texts errorTexts
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{
			Domain: r.World(), FirstSegment: 4 * mib, Capacity: 4 * mib,
		})
		other := r.stream()
		b, _ := r.alloc(p, 2*mib), r.alloc(p, 2*mib)
		r.ok(p.Register(r.ctx, r.World()))
		release := r.hold(other)
		if r.Rank() == 1 {
			// On this rank, the other stream's work completes early.
			release()
		}

		r.ok(other.Fill(b.Memory(), 7))
		if r.Rank() == 1 {
			e, err := r.NewEvent()
			r.ok(err)
			r.ok(other.Record(e))
			r.ok(e.Synchronize(r.ctx))
		}

		r.ok(b.Free())
		c := r.alloc(p, 2*mib)
		r.ok(r.DefaultStream().Fill(c.Memory(), 9))
		if r.Rank() == 0 {
			release()
		}

		r.synchronize()
		v := read[uint8](r, c.Memory())
		if v[0] != 9 || v[len(v)-1] != 9 {
			r.failf("got elements %d, want 9: the fill of the freed buffer ran last", v[0])
		}

		texts.add(r, errors.New(place(c)))
		r.ok(r.World().Check(r.ctx))
	})
	texts.requireSame(t, 2)
}

func TestStreamOrderAndEvents(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		first, second := r.stream(), r.stream()
		if first.Number() != 1 || second.Number() != 2 || r.DefaultStream().Number() != 0 {
			r.failf("the new streams have numbers %d and %d, want 1 and 2", first.Number(),
				second.Number())
		}

		a, b := r.alloc(p, 4096), r.alloc(p, 4096)
		e, err := r.NewEvent()
		r.ok(err)
		if !e.Done() {
			r.failf("Done = false for an event that has not been recorded, want true")
		}

		release := r.hold(first)
		r.ok(first.Fill(a.Memory(), 1))
		r.ok(first.Record(e))
		r.ok(second.Wait(e))
		r.ok(second.Copy(b.Memory(), a.Memory()))
		if e.Done() {
			r.failf("Done = true before the work has completed, want false")
		}

		release()
		r.ok(second.Synchronize(r.ctx))
		v := read[uint8](r, b.Memory())
		if v[0] != 1 || v[4095] != 1 || !e.Done() {
			r.failf("got element %d and Done = %v, want 1 and true", v[0], e.Done())
		}
	})
}

func TestInvalidStreamCalls(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		s := r.DefaultStream()
		b := r.alloc(p, 4096)
		half, err := b.Memory().Slice(0, 2048)
		r.ok(err)
		r.wantErr(s.Copy(b.Memory(), half), symmem.ErrInvalid)
		r.ok(s.Host(func() { panic("a host function that fails") }))
		if err := s.Synchronize(r.ctx); err == nil || !strings.Contains(err.Error(), "that fails") {
			r.failf("got %v, want the panic of the host function", err)
		}

		r.synchronize()
		r.ok(b.Free())
		if err := s.Fill(b.Memory(), 1); err == nil && r.stream().Fill(b.Memory(), 1) == nil {
			r.failf("Fill of a freed buffer succeeded")
		}
	})
}

func TestQueuedWorkKeepsGoSlice(t *testing.T) {
	for name, during := range map[string]func(r *rank){
		"open Runtime":    func(*rank) {},
		"closing Runtime": func(r *rank) { beginClose(r.Runtime) },
	} {
		t.Run(name, func(t *testing.T) {
			runRanks(t, 1, symmem.Options{}, func(r *rank) {
				// On other devices, the call reads pageable memory before it returns, and may wait
				// for the stream.
				r.requireAddressable()
				b := r.alloc(r.pool(), 1<<16)
				s := r.DefaultStream()
				release := r.hold(s)
				symmem.HoldCopy(s, func() { during(r) })
				queueCopy := func() weak.Pointer[byte] {
					source := make([]byte, 1<<16)
					if err := s.Copy(b.Memory(), symmem.Host(source)); !errors.Is(err, symmem.ErrClosed) {
						r.ok(err)
					}

					return weak.Make(&source[0])
				}
				source := queueCopy()
				runtime.GC()
				runtime.GC()
				if source.Value() == nil {
					release()
					r.failf("the slice was garbage collected before the copy")
				}
			})
		})
	}
}

// TestUnusedStreamDoesNotDiverge creates streams on rank 0 that do not use the ranks' shared pool.
func TestUnusedStreamDoesNotDiverge(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		if r.Rank() == 0 {
			unrelated := r.stream()
			own := r.poolWith(symmem.PoolOptions{})
			b, err := own.AllocOn(unrelated, 512)
			r.ok(err)
			r.ok(b.Free())
			r.stream()
		}

		first, second := r.stream(), r.stream()
		var buffers []symmem.Buffer
		for _, s := range []*symmem.Stream{first, r.DefaultStream(), second, first} {
			b, err := p.AllocOn(s, mib)
			r.ok(err)
			buffers = append(buffers, b)
		}

		r.ok(p.ReserveOn(r.ctx, second, 8*mib, r.World()))
		r.ok(buffers[0].UseOn(second))
		for _, b := range buffers {
			r.ok(b.Free())
		}

		r.ok(second.Synchronize(r.ctx))
		r.ok(p.Trim(r.ctx, 0))
		r.ok(r.World().Check(r.ctx))
	})
}

func TestStreamDivergenceExplainsNumbers(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p, streams := r.pool(), []*symmem.Stream{r.stream(), r.stream()}
		for i := range streams {
			_, err := p.AllocOn(streams[i], mib)
			r.ok(err)
		}

		_, err := p.AllocOn(streams[r.Rank()], mib)
		r.ok(err)
		text := r.wantDivergence(r.World().Check(r.ctx)).Error()
		for _, want := range []string{
			"(stream 1)", "(stream 2)", "rank 1 has the same event on a different stream than rank 0",
			"a pool numbers streams from 1, in the order of their first allocation; 0 is the default stream",
		} {
			if !strings.Contains(text, want) {
				r.failf("the error %q does not contain %q", text, want)
			}
		}
	})
}

func TestNilStreamAndEvent(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		_, err := p.AllocOn(nil, 4096)
		r.wantErr(err, symmem.ErrInvalid)
		r.wantErr(r.alloc(p, 4096).UseOn(nil), symmem.ErrInvalid)
		r.wantErr(r.DefaultStream().Record(nil), symmem.ErrInvalid)
		r.wantErr(r.DefaultStream().Wait(nil), symmem.ErrInvalid)
		var zero symmem.Event
		r.wantErr(r.DefaultStream().Record(&zero), symmem.ErrInvalid)
		r.wantErr(r.DefaultStream().Wait(&zero), symmem.ErrInvalid)
		for _, e := range []*symmem.Event{nil, &zero} {
			r.wantErr(e.Synchronize(r.ctx), symmem.ErrInvalid)
			if e.Done() {
				r.failf("Done = true for an invalid event, want false")
			}
		}

		r.ok(r.DefaultStream().BeginCapture())
		g, err := r.DefaultStream().EndCapture()
		r.ok(err)
		r.wantErr(g.Launch(nil), symmem.ErrInvalid)
		r.ok(g.Close())
	})
}

// TestMemoryUsedByOtherStreamIsNotReused frees a buffer that another stream still uses, for several
// kinds of use. The memory must not be reused before the other stream has finished using it.
func TestMemoryUsedByOtherStreamIsNotReused(t *testing.T) {
	type use func(r *rank, b symmem.Buffer, hold func(*symmem.Stream))
	for name, use := range map[string]use{
		"call and Free during Synchronize": func(
			r *rank, b symmem.Buffer, hold func(*symmem.Stream),
		) {
			s := r.stream()
			symmem.HoldSynchronize(s, sync.OnceFunc(func() {
				hold(s)
				r.ok(s.Fill(b.Memory(), 1))
				r.ok(b.Free())
			}))
			r.ok(s.Synchronize(r.ctx))
		},
		"call during Synchronize": func(
			r *rank, b symmem.Buffer, hold func(*symmem.Stream),
		) {
			s := r.stream()
			symmem.HoldSynchronize(s, sync.OnceFunc(func() {
				hold(s)
				r.ok(s.Fill(b.Memory(), 1))
			}))
			r.ok(s.Synchronize(r.ctx))
			r.ok(b.Free())
		},
		"Synchronize during a call": func(
			r *rank, b symmem.Buffer, hold func(*symmem.Stream),
		) {
			s := r.stream()
			symmem.HoldFill(s, func() {
				r.ok(s.Synchronize(r.ctx))
				hold(s)
			})
			r.ok(s.Fill(b.Memory(), 1))
			r.ok(b.Free())
		},
		"use by another, forgotten stream": func(r *rank, b symmem.Buffer, hold func(*symmem.Stream)) {
			s := r.stream()
			hold(s)
			r.ok(s.Fill(b.Memory(), 1))
			gone, err := r.Interop().AdoptStream(r.stream().Handle())
			r.ok(err)
			r.ok(b.UseOn(gone))
			r.Interop().ForgetStream(gone)
			r.ok(b.Free())
		},
		"use during ForgetStream": func(r *rank, b symmem.Buffer, hold func(*symmem.Stream)) {
			s, err := r.Interop().AdoptStream(r.stream().Handle())
			r.ok(err)
			hold(s)
			r.ok(s.Fill(b.Memory(), 1))
			var forgetting sync.WaitGroup
			forgetting.Go(func() { r.Interop().ForgetStream(s) })
			r.cleanups = append(r.cleanups, forgetting.Wait)
			pause()
			r.ok(b.Free())
		},
	} {
		t.Run(name, func(t *testing.T) {
			runRanks(t, 1, symmem.Options{}, func(r *rank) {
				p := r.poolWith(symmem.PoolOptions{FirstSegment: 4 * mib, Capacity: 4 * mib})
				waiting := r.alloc(p, 2*mib) // deferred memory, without which Synchronize does nothing here
				r.ok(waiting.UseOn(r.stream()))
				r.ok(waiting.Free())
				b, release := r.alloc(p, 2*mib), func() {}
				use(r, b, func(s *symmem.Stream) { release = r.hold(s) })
				r.checkReuse(p, 4*mib, release)
			})
		})
	}
}

// TestMemoryOfAbortedStreamIsNotReused forgets a stream whose work has not completed.
func TestMemoryOfAbortedStreamIsNotReused(t *testing.T) {
	runRanks(t, 1, symmem.Options{Timeout: time.Second}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{FirstSegment: 2 * mib, Capacity: 2 * mib})
		s, err := r.Interop().AdoptStream(r.stream().Handle())
		r.ok(err)
		b := r.alloc(p, 2*mib)
		release := r.hold(s)
		r.ok(s.Fill(b.Memory(), 1))
		r.Interop().ForgetStream(s)
		r.ok(b.Free())
		r.checkReuse(p, 2*mib, release)
	})
}

// checkReuse allocates all memory of a pool and then releases another stream's work on the memory.
// The test fails if that work overwrites the new buffer.
func (r *rank) checkReuse(p *symmem.Pool, bytes int64, release func()) {
	r.t.Helper()
	b := r.alloc(p, bytes)
	r.ok(r.DefaultStream().Fill(b.Memory(), 0))
	pause()
	release()
	pause()
	r.checkAll(b, 0)
}

// TestReuseTimeIsSameOnAllRanks checks that all ranks reuse memory at the same point of their
// programs, although other goroutines may use or forget a stream at any time on each rank.
func TestReuseTimeIsSameOnAllRanks(t *testing.T) {
	for name, run := range map[string]func(*rank, *symmem.Pool){
		"call during Synchronize on one rank": func(r *rank, p *symmem.Pool) {
			s, own := r.stream(), r.unregistered(mib)
			b := r.alloc(p, mib)
			r.ok(b.UseOn(s))
			r.ok(b.Free())
			symmem.HoldSynchronize(s, sync.OnceFunc(func() {
				if r.Rank() == 1 {
					r.ok(s.Fill(own, 1))
				}
			}))
			r.ok(s.Synchronize(r.ctx))
		},
		"earlier ForgetStream on one rank": func(r *rank, p *symmem.Pool) {
			s := r.stream()
			gone, err := r.Interop().AdoptStream(r.stream().Handle())
			r.ok(err)
			b, live := r.alloc(p, mib), r.alloc(p, mib)
			r.ok(b.UseOn(gone))
			r.ok(live.UseOn(s))
			if r.Rank() == 1 {
				r.Interop().ForgetStream(gone)
			}

			r.ok(b.Free())
			r.ok(s.Synchronize(r.ctx))
			r.ok(live.Free())
			r.alloc(p, mib)
			r.Interop().ForgetStream(gone)
		},
	} {
		t.Run(name, func(t *testing.T) {
			runRanks(t, 2, symmem.Options{}, func(r *rank) {
				p := r.pool()
				run(r, p)
				r.ok(r.World().Check(r.ctx))
			})
		})
	}
}
