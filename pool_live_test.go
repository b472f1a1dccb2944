package symmem_test

import (
	"testing"

	"symmem"
)

var closings = map[string]func(r *rank, p *symmem.Pool) error{
	"the pool":    func(_ *rank, p *symmem.Pool) error { return p.Close() },
	"the runtime": func(r *rank, _ *symmem.Pool) error { return r.Close() },
}

func TestLiveBuffersOutliveClose(t *testing.T) {
	for name, closing := range closings {
		t.Run(name, func(t *testing.T) {
			runRanks(t, 2, symmem.Options{}, func(r *rank) {
				r.requireAddressable()
				p := r.pool()
				freed := r.window(p, 4*mib)
				first, second := r.window(p, 2*mib), r.alloc(p, 512)
				r.checkSum(r.World(), first)
				r.ok(freed.Free())
				views := [][]float32{}
				for _, b := range []symmem.Buffer{first, second} {
					v, err := symmem.View[float32](b)
					r.ok(err)
					v[0] = float32(r.Rank() + 40)
					views = append(views, v)
				}

				r.ok(closing(r, p))
				for _, v := range views {
					if v[0] != float32(r.Rank()+40) {
						r.failf("got %v as the first element, want %v", v[0], r.Rank()+40)
					}

					v[len(v)-1]++
				}

				_, err := symmem.View[float32](first)
				r.wantErr(err, symmem.ErrClosed)
				r.wantErr(freed.Free(), symmem.ErrDoubleFree)
				r.ok(first.Free())
				r.wantErr(first.Free(), symmem.ErrDoubleFree)
				views[1][0]++
				r.ok(second.Free())
				r.wantErr(second.Free(), symmem.ErrClosed)
			})
		})
	}
}

func TestClosedPoolKeepsAddressesOfLiveBuffers(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		freed, live := r.alloc(p, 4*mib), r.alloc(p, 16*mib)
		r.ok(freed.Free())
		r.ok(p.Close())
		for range 50 {
			other := r.poolWith(symmem.PoolOptions{})
			b := r.alloc(other, 64*mib)
			if symmem.Contains(other, freed.Address()) || symmem.Contains(other, live.Address()) {
				r.failf("the pool of %#x reuses addresses of a closed pool with live buffers", b.Address())
			}

			r.ok(b.Free())
			r.ok(other.Close())
		}

		r.ok(live.Free())
	})
}
