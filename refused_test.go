package symmem_test

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"symmem"
)

func TestAKeptPlanRefusesABufferThatWasFreed(t *testing.T) {
	together(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		b := r.alloc(p, 4096)
		m := b.Memory()
		call := func() error {
			return r.World().AllReduce(r.ctx, m, m, 2, symmem.Float32, symmem.Sum, nil)
		}
		r.ok(call())
		r.ok(r.alloc(p, 512).Free())
		r.ok(call())
		r.ok(b.Free())
		r.is(call(), symmem.ErrFreed)
	})
}

func TestAGroupIsTheDomainOfAsManyPoolsAsAnAgreementCompares(t *testing.T) {
	together(t, 1, symmem.Options{}, func(r *rank) {
		var err error
		made := 0
		for ; err == nil && made < 100; made++ {
			_, err = r.NewPool(symmem.PoolOptions{Domain: r.World()})
		}
		r.is(err, symmem.ErrInvalid)
		if made != 65 {
			r.failf("%d pools were made", made-1)
		}
		r.ok(r.World().Check(r.ctx))
	})
}

func TestAUseThatACaptureHidesKeepsItsBlock(t *testing.T) {
	together(t, 1, symmem.Options{}, func(r *rank) {
		p, err := r.NewPool(symmem.PoolOptions{
			Domain: r.World(), Capacity: 2 << 20, FirstSegment: 2 << 20,
		})
		r.ok(err)
		other, err := r.NewStream()
		r.ok(err)
		b, err := p.Alloc(2 << 20)
		r.ok(err)
		r.ok(b.UseOn(other))
		r.ok(other.BeginCapture())
		r.ok(b.Free())
		_, err = p.Alloc(2 << 20)
		r.ok(err)
		g, err := other.EndCapture()
		r.ok(err)
		r.ok(g.Launch(other))
		r.ok(g.Close())
	})
}

func TestBuffersThatOverlapAreRefusedUnlessInPlace(t *testing.T) {
	together(t, 2, symmem.Options{}, func(r *rank) {
		all := r.alloc(r.pool(), 4096).Memory()
		part := func(from, bytes int64) symmem.Memory {
			m, err := all.Slice(from, bytes)
			r.ok(err)
			return m
		}
		w, own := r.World(), int64(r.Rank())*400
		r.is(w.AllReduce(r.ctx, part(0, 400), part(4, 400), 100, symmem.Float32, symmem.Sum, nil),
			symmem.ErrInvalid)
		r.is(w.AllGather(r.ctx, part(8, 400), part(0, 800), 100, symmem.Float32, nil),
			symmem.ErrInvalid)
		r.ok(w.AllGather(r.ctx, part(own, 400), part(0, 800), 100, symmem.Float32, nil))
		r.ok(w.ReduceScatter(
			r.ctx, part(0, 800), part(own, 400), 100, symmem.Float32, symmem.Sum, nil))
		nowhere := r.Interop().Memory(0, 8)
		r.is(w.AllReduce(r.ctx, nowhere, nowhere, 2, symmem.Float32,
			symmem.Sum, nil), symmem.ErrInvalid)
		r.synchronize()
	})
}

func TestRanksThatCheckAtDifferentLevelsAreRefused(t *testing.T) {
	needs(t, 2)
	store := fmt.Sprintf("unix:@symmem-levels-%d", os.Getpid())
	var ranks sync.WaitGroup
	for number, level := range []symmem.CheckLevel{symmem.CheckEvery, symmem.CheckOff} {
		ranks.Go(func() {
			rt, err := symmem.Open(t.Context(), on(symmem.Options{
				Rank: number, Size: 2, Store: store, Check: level, Timeout: 10 * time.Second,
			}))
			if !errors.Is(err, symmem.ErrInvalid) {
				t.Errorf("rank %d: got %v, want ErrInvalid", number, err)
			}
			if rt != nil {
				rt.Close()
			}
		})
	}
	ranks.Wait()
}

func TestNoStreamAndNoEventAreRefused(t *testing.T) {
	together(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		_, err := p.AllocOn(nil, 4096)
		r.is(err, symmem.ErrInvalid)
		r.is(r.alloc(p, 4096).UseOn(nil), symmem.ErrInvalid)
		r.is(r.DefaultStream().Record(nil), symmem.ErrInvalid)
		r.is(r.DefaultStream().Wait(nil), symmem.ErrInvalid)
		var zero symmem.Event
		r.is(r.DefaultStream().Record(&zero), symmem.ErrInvalid)
		r.is(r.DefaultStream().Wait(&zero), symmem.ErrInvalid)
		for _, e := range []*symmem.Event{nil, &zero} {
			r.is(e.Synchronize(r.ctx), symmem.ErrInvalid)
			if e.Done() {
				r.failf("an event that no Runtime has made is done")
			}
		}
		r.ok(r.DefaultStream().BeginCapture())
		g, err := r.DefaultStream().EndCapture()
		r.ok(err)
		r.is(g.Launch(nil), symmem.ErrInvalid)
		r.ok(g.Close())
	})
}
