package symmem_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"symmem"
	"symmem/event"
)

type blockPlace struct {
	segment int32
	offset  int64
}

// replay tracks the segments and live blocks that a pool's events describe.
type replay struct {
	next     uint64 // number of the next event of the history
	segments map[int32]bool
	live     map[blockPlace]int64 // sizes of live blocks
	errs     []string
}

func newReplay() *replay {
	return &replay{segments: map[int32]bool{}, live: map[blockPlace]int64{}}
}

func (r *replay) failf(e *event.Event, format string, args ...any) {
	r.errs = append(r.errs, fmt.Sprintf("event %d, %v: ", e.Number, e)+fmt.Sprintf(format, args...))
}

func (r *replay) apply(e *event.Event) {
	if e.Kind == event.KindRestart {
		r.next = e.Number
	}

	if e.Number != r.next {
		r.failf(e, "got number %d, want %d", e.Number, r.next)
	}

	place := blockPlace{e.Segment, e.Offset}
	switch e.Kind {
	case event.KindSegment:
		r.segments[e.Segment] = true
	case event.KindRelease:
		if !r.segments[e.Segment] {
			r.failf(e, "the segment does not exist")
		}

		delete(r.segments, e.Segment)
	case event.KindAlloc:
		r.alloc(e, place)
	case event.KindFree, event.KindPark, event.KindDefer:
		if r.live[place] != e.Size && e.Kind != event.KindDefer { // a parked block may become deferred
			r.failf(e, "the live block at its place has %d bytes", r.live[place])
		}

		delete(r.live, place)
	default:
	}

	if e.Kind.InHistory() || e.Kind.IsGroupEvent() {
		r.next = e.Number + 1
	}
}

func (r *replay) alloc(e *event.Event, place blockPlace) {
	if !r.segments[e.Segment] {
		r.failf(e, "the segment does not exist")
	}

	for other, size := range r.live {
		if other.segment == place.segment &&
			other.offset < place.offset+e.Size && place.offset < other.offset+size {
			r.failf(e, "the block overlaps %+v of %d bytes", other, size)
		}
	}

	r.live[place] = e.Size
}

// recorder records and replays events by pool and group. OnEvent is never called concurrently for
// one pool, so only the map needs a lock.
type recorder struct {
	mu    sync.Mutex
	pools map[poolKey]*poolHistory // guarded by mu
}

type poolKey struct {
	rank  int
	group string
	id    uint64
}

// groupEvents replaces the pool id in the key of a group, because pools and groups number their
// events separately.
const groupEvents = ^uint64(0)

type poolHistory struct {
	*replay
	events []event.Event
}

func newRecorder() *recorder { return &recorder{pools: map[poolKey]*poolHistory{}} }

func (r *recorder) history(key poolKey) *poolHistory {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pools[key] == nil {
		r.pools[key] = &poolHistory{replay: newReplay()}
	}

	return r.pools[key]
}

func (r *recorder) record(e *event.Event) {
	key := poolKey{int(e.Rank), e.Group, e.Pool}
	if e.Kind.IsGroupEvent() {
		key.id = groupEvents
	}

	p := r.history(key)
	p.apply(e)
	p.events = append(p.events, *e)
}

// compare replays the events of p, which must be the rank's first pool of the world, and compares
// the result with the live blocks of p.
func (r *recorder) compare(t *testing.T, rt *symmem.Runtime, p *symmem.Pool) {
	t.Helper()
	replayed := r.history(poolKey{rt.Rank(), "world", 0})
	for _, err := range replayed.errs {
		t.Errorf("rank %d: %s", rt.Rank(), err)
	}

	replayed.errs = nil
	want := map[blockPlace]int64{}
	for _, b := range symmem.Live(p) {
		want[blockPlace{b.Segment, b.Offset}] = b.Size
	}

	if !maps.Equal(replayed.live, want) {
		t.Errorf("rank %d: the replay has the live blocks %v, want %v", rt.Rank(), replayed.live, want)
	}
}

// TestEventsReplayToLiveBlocks runs random programs. After each step, all events must have been
// delivered, a replay of the events must yield the pool's live blocks, and the two ranks must have
// the same events.
func TestEventsReplayToLiveBlocks(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		program, events := drawProgram(rt), newRecorder()
		var got [2][]event.Event // without the frees at the end of the test
		passed := t.Run("", func(t *testing.T) {
			runRanks(t, 2, symmem.Options{OnEvent: events.record}, func(r *rank) {
				m := &programState{rank: r, pool: r.pool(), groups: []*symmem.Group{r.World()}}
				for _, s := range program {
					m.run(s)
					if n := symmem.Undelivered(r.Runtime); n != 0 {
						r.failf("got %d undelivered events after %+v, want 0", n, s)
					}

					events.compare(t, r.Runtime, m.pool)
				}

				got[r.Rank()] = slices.Concat(events.history(poolKey{r.Rank(), "world", 0}).events,
					events.history(poolKey{r.Rank(), "world", groupEvents}).events)
			})
		})
		identical := slices.EqualFunc(got[0], got[1], func(a, b event.Event) bool {
			if a.Name != "" && b.Name != "" {
				a.Name, b.Name = "", "" // the ranks are in different groups after a split
			}

			return a.Same(b)
		})
		if !passed || !identical {
			rt.Fatalf("the ranks' events differ: rank 0 has %v, rank 1 has %v", got[0], got[1])
		}
	})
}

// TestEventsRestartAfterFault aborts a group after rank 1 has made an extra allocation. After the
// restart, the two ranks must have the same events, and a replay must yield the pool's live blocks.
func TestEventsRestartAfterFault(t *testing.T) {
	events := newRecorder()
	var got [2][]event.Event
	runWithFault(t, 2, symmem.Options{OnEvent: events.record}, func(r *rank) {
		p := r.pool()
		g := r.split(r.World(), 0)
		kept := r.alloc(p, 4096)
		r.ok(p.Register(r.ctx, g))
		if r.Rank() == 1 {
			r.ok(r.alloc(p, 512).Free())
		}

		g.Abort()
		r.wantErr(g.Cause(r.ctx), symmem.ErrAborted)
		r.ok(r.World().Check(r.ctx))
		r.alloc(p, 1024)
		r.ok(kept.Free())
		r.ok(p.Register(r.ctx, r.World()))
		events.compare(t, r.Runtime, p)
		got[r.Rank()] = events.history(poolKey{r.Rank(), "world", 0}).events
	})
	for rank, all := range got {
		restart := slices.IndexFunc(all, func(e event.Event) bool { return e.Kind == event.KindRestart })
		if restart < 0 {
			t.Fatalf("rank %d: got events %v, want a restart", rank, all)
		}

		got[rank] = all[restart:]
	}

	if !slices.EqualFunc(got[0], got[1], event.Event.Same) {
		t.Errorf("the ranks' events differ: rank 0 has %v, rank 1 has %v", got[0], got[1])
	}
}

func TestConcurrentEventsReachTheHookInOrder(t *testing.T) {
	const goroutines, steps = 4, 300
	events := newRecorder()
	runRanks(t, 1, symmem.Options{OnEvent: events.record}, func(r *rank) {
		p := r.pool()
		var all sync.WaitGroup
		for g := range goroutines {
			s := r.stream()
			all.Go(func() {
				for i := range int64(steps) {
					b, err := p.AllocOn(s, 512*(1+i%64))
					if err == nil && i%8 == int64(g) {
						err = b.UseOn(r.DefaultStream())
					}

					if err == nil && i%50 != 0 {
						err = b.Free()
					}

					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}

		all.Wait()
		r.ok(r.DefaultStream().Synchronize(r.ctx))
		r.ok(p.Trim(r.ctx, 0))
		events.compare(t, r.Runtime, p)
		if n := symmem.Undelivered(r.Runtime); n != 0 {
			r.failf("got %d undelivered events, want 0", n)
		}
	})
}

func TestOnEventMayCallSymmem(t *testing.T) {
	var pool *symmem.Pool
	var kinds []event.Kind
	calls := 0
	runRanks(t, 1, symmem.Options{OnEvent: func(e *event.Event) {
		kinds = append(kinds, e.Kind)
		if pool == nil || calls == 10 {
			return
		}

		calls++
		b, err := pool.Alloc(512)
		if err == nil {
			err = b.Free()
		}

		if err == nil {
			err = pool.Register(t.Context(), pool.Domain())
		}

		if err == nil {
			err = pool.Domain().Check(t.Context())
		}

		if err != nil {
			t.Error(err)
		}
	}}, func(r *rank) {
		p := r.pool()
		r.ok(r.window(p, 4096).Free())
		pool = p
		r.ok(r.alloc(p, mib).Free())
		r.ok(p.Trim(r.ctx, 0))
		pool = nil
		want := []event.Kind{event.KindTrim, event.KindDeregister, event.KindRelease}
		if n := len(kinds); calls != 10 || n < 20 || !slices.Equal(kinds[n-3:], want) {
			r.failf("%d calls caused the events %v, want 10 calls and %v at the end", calls, kinds, want)
		}
	})
}

func TestScopeAndRegistrationEvents(t *testing.T) {
	var got []string
	hook := func(e *event.Event) { got = append(got, fmt.Sprintf("%s.%d: %v", e.Group, e.Pool, e)) }
	runRanks(t, 1, symmem.Options{OnEvent: hook}, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{})
		_, err := p.Alloc(512)
		r.ok(err)
		q := r.pool()
		s := q.Begin(r.World())
		_, err = s.Alloc(512)
		r.ok(err)
		r.ok(s.End(r.ctx))
		s.Abandon()
		q.Begin(r.World()).Abandon()
		q.BeginDisabled().Abandon()
		r.closePool(q)
		want := []string{
			".1: segment 67108864 B (stream 0) -> segment 0 offset 0x0",
			".1: alloc 512 B (stream 0) -> segment 0 offset 0x0",
			"world.0: scope begin of group world",
			"world.0: segment 4194304 B (stream 0) -> segment 0 offset 0x0",
			"world.0: alloc 512 B (stream 0) -> segment 0 offset 0x0",
			"world.0: scope end of group world",
			"world.0: register 4194304 B (stream 0) at segment 0 offset 0x0 with group world",
			"world.0: scope begin of group world",
			"world.0: scope abandon of group world",
			".0: scope begin",
			".0: scope abandon",
			"world.0: deregister 4194304 B (stream 0) at segment 0 offset 0x0 with group world",
		}
		if !slices.Equal(got, want) {
			r.failf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

func TestGroupEvents(t *testing.T) {
	var texts [2][]string
	var sites [2][]string
	failed := make(chan event.Event, 2)
	hook := func(e *event.Event) {
		switch {
		case e.Group == "world" || !e.Kind.IsGroupEvent():
		case e.Kind == event.KindFault:
			failed <- *e
		default:
			texts[e.Rank] = append(texts[e.Rank], e.String())
			sites[e.Rank] = append(sites[e.Rank], e.Site)
			if c := e.Call; c != nil && (c.Operation == "AllReduce" && c.Bytes != 64 || c.Digest == 0) {
				t.Errorf("%v has %d bytes and the digest %#x, want 64 bytes and a digest", e, c.Bytes, c.Digest)
			}
		}
	}
	runRanks(t, 2, symmem.Options{OnEvent: hook, Path: symmem.PathPlain}, func(r *rank) {
		g, b := r.split(r.World(), 0), r.alloc(r.pool(), 4096)
		r.fill(b, 1)
		m := b.Memory()
		for range 2 {
			r.ok(g.AllReduce(r.ctx, m, m, 16, symmem.Float32, symmem.Sum, nil))
		}

		r.ok(g.Broadcast(r.ctx, m, m, 4, symmem.Int32, 1, nil))
		r.ok(g.Agree(r.ctx, "batch size", 8))
		r.ok(g.AgreeFloat(r.ctx, "rate", 2))
		r.ok(g.AgreeString(r.ctx, "model", "tiny"))
		_, err := g.Any(r.ctx, "stop", r.Rank() == 0)
		r.ok(err)
		r.ok(g.Step(r.ctx, "decode"))
		r.ok(g.Barrier(r.ctx, nil))
		r.synchronize()
		if r.Rank() == 0 {
			g.Abort()
		}

		select {
		case e := <-failed:
			if want := g.Cause(r.ctx).Error(); e.Text != want {
				r.failf("the fault event has the text %q, want %q", e.Text, want)
			}
		case <-time.After(20 * time.Second):
			r.failf("got no fault event, want one")
		}
	})
	for r, got := range texts {
		want := []string{
			"AllReduce sum of 16 float32, path plain",
			"AllReduce sum of 16 float32, path plain",
			"Broadcast of 4 int32, root 1, path plain",
			`"batch size": Agree of 8`, `"rate": Agree of 2.0`, `"model": Agree of "tiny"`,
			fmt.Sprintf(`"stop": Any of %v`, r == 0), "step decode, after 3 collectives",
			"Barrier, path plain",
		}
		if !slices.Equal(got, want) {
			t.Errorf("rank %d: got %q, want %q", r, got, want)
		}

		if step := sites[r][len(want)-2]; !strings.Contains(step, "events_test.go:") {
			t.Errorf("rank %d: the step's site is %q, want a line of events_test.go", r, step)
		}
	}
}

func TestEventsDoNotAllocate(t *testing.T) {
	seen := 0
	for name, hook := range map[string]func(*event.Event){
		"no hook": nil, "a hook": func(*event.Event) { seen++ },
	} {
		t.Run(name, func(t *testing.T) {
			rt := openAloneWith(t, symmem.Options{OnEvent: hook})
			p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
			if err != nil {
				t.Fatal(err)
			}

			kept, err := p.Alloc(4096)
			if err != nil {
				t.Fatal(err)
			}

			m := kept.Memory()
			n := testing.AllocsPerRun(1000, func() {
				b, err := p.Alloc(4096)
				if err == nil {
					err = b.Free()
				}

				if err == nil {
					err = rt.World().AllReduce(t.Context(), m, m, 16, symmem.Float32, symmem.Sum, nil)
				}

				if err != nil {
					t.Fatal(err)
				}
			})
			if n != 0 {
				t.Errorf("%v allocations, want 0", n)
			}
		})
	}
}
