package symmem_test

import (
	"errors"
	"testing"

	"symmem"
)

func TestScopeEndRegistersNewMemory(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		s := p.Begin(r.World())
		b, err := s.Alloc(mib)
		r.ok(err)
		if !s.Enabled() {
			r.failf("Enabled() = false, want true")
		}
		if r.World().IsSymmetric(b.Memory()) {
			r.failf("the buffer was registered before End")
		}
		r.ok(s.End(r.ctx))
		r.checkSum(r.World(), b)
		if stats := r.World().Stats(); stats.Registrations != 1 || stats.Paths["window"] != 1 {
			r.failf("got %+v, want 1 registration and 1 call on the window path", stats)
		}
	})
}

func TestScopeEndWithoutNewMemory(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		r.window(p, mib)
		before := r.World().Stats().Agreements
		for i := 0; i < 10 && r.Rank() == 0; i++ {
			s := p.Begin(r.World())
			r.ok(s.End(r.ctx))
		}
		if n := r.World().Stats().Agreements; n != before {
			r.failf("%d agreements after the scopes, want %d as before", n, before)
		}
	})
}

func TestNestedScopes(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		single := r.split(r.World(), r.Rank())
		outer := p.Begin(r.World())
		a, err := outer.Alloc(mib)
		r.ok(err)
		inner := p.Begin(single)
		b, err := inner.Alloc(8 * mib)
		r.ok(err)
		r.ok(inner.End(r.ctx))
		for _, buffer := range []symmem.Buffer{a, b} {
			if !single.IsSymmetric(buffer.Memory()) {
				r.failf("the inner scope's group has no window over segment %d", buffer.Segment())
			}
			if r.World().IsSymmetric(buffer.Memory()) {
				r.failf("the outer scope's group has a window over segment %d before End", buffer.Segment())
			}
		}
		r.ok(outer.End(r.ctx))
		r.checkSum(r.World(), a)
		r.checkSum(r.World(), b)
		r.checkSum(single, b)
	})
}

func TestEndedScopeRejectsCalls(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		for name, end := range map[string]func(s *symmem.Scope){
			"End":     func(s *symmem.Scope) { r.ok(s.End(r.ctx)) },
			"Abandon": func(s *symmem.Scope) { s.Abandon() },
		} {
			s := p.Begin(r.World())
			end(s)
			s.Abandon() // does nothing
			r.wantErr(s.End(r.ctx), symmem.ErrClosed)
			if _, err := s.Alloc(512); !errors.Is(err, symmem.ErrClosed) {
				r.failf("Alloc after %s: got %v, want ErrClosed", name, err)
			}
		}
	})
}

func TestScopeDoesNotAllocate(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		scope := func() {
			s := p.Begin(r.World())
			defer s.Abandon()
			r.ok(s.End(r.ctx))
		}
		if n := testing.AllocsPerRun(100, scope); n > 0 {
			r.failf("%v allocations on the Go heap, want 0", n)
		}
	})
}

func TestNextEndRegistersMemoryOfAbandonedScope(t *testing.T) {
	errTest := errors.New("test error")
	for _, row := range []struct {
		name    string
		abandon func(r *rank, p *symmem.Pool) symmem.Buffer
	}{
		{"by Abandon", func(r *rank, p *symmem.Pool) symmem.Buffer {
			s := p.Begin(r.World())
			defer s.Abandon()
			b, err := s.Alloc(mib)
			r.ok(err)
			return b
		}},
		{"by an error in With", func(r *rank, p *symmem.Pool) (b symmem.Buffer) {
			r.wantErr(p.With(r.ctx, r.World(), func(s *symmem.Scope) (err error) {
				b, err = s.Alloc(mib)
				return errors.Join(err, errTest)
			}), errTest)
			return b
		}},
		{"by a panic in With", func(r *rank, p *symmem.Pool) (b symmem.Buffer) {
			defer func() {
				if recover() != any(errTest) {
					r.failf("With did not propagate the panic")
				}
			}()
			r.ok(p.With(r.ctx, r.World(), func(s *symmem.Scope) (err error) {
				b, err = s.Alloc(mib)
				r.ok(err)
				panic(errTest)
			}))
			return b
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			runRanks(t, 2, symmem.Options{}, func(r *rank) {
				p := r.pool()
				b := row.abandon(r, p)
				if n := r.World().Stats().Windows; n != 0 {
					r.failf("%d windows after an abandoned scope, want 0", n)
				}
				s := p.Begin(r.World())
				r.ok(s.End(r.ctx))
				if !r.World().IsSymmetric(b.Memory()) {
					r.failf("the next End did not register the buffer")
				}
				r.checkSum(r.World(), b)
			})
		})
	}
}

func TestDisabledScopeAllocatesLocalMemory(t *testing.T) {
	const count = 1024
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		s := p.BeginDisabled()
		b, err := s.Alloc(int64(1+r.Rank()) * mib)
		r.ok(err)
		if s.Enabled() || b.Pool() == p || p.Stats().Used != 0 {
			r.failf("the disabled scope allocated from the pool")
		}
		r.ok(s.End(r.ctx))
		r.wantErr(s.End(r.ctx), symmem.ErrClosed)
		r.ok(r.World().Check(r.ctx))
		m := b.Memory()
		r.fill(b, 1)
		r.ok(r.World().AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, nil))
		r.synchronize()
		if v := r.floats(b); v[count-1] != 2 || v[count] != 1 {
			r.failf("elements %d and %d = %v and %v, want the sum 2 and the initial value 1", count-1,
				count, v[count-1], v[count])
		}
		if paths := r.World().Stats().Paths; paths["plain"] != 1 || paths["window"] != 0 {
			r.failf("Paths = %v, want 1 plain", paths)
		}
		r.ok(b.Free())
	})
}

func TestScopeEndReportsRegistrationError(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		single := r.split(r.World(), r.Rank())
		for _, row := range []struct {
			name string
			pool *symmem.Pool
			want error
		}{
			{"a pool without a domain", r.poolWith(symmem.PoolOptions{}), symmem.ErrInvalid},
			{
				"a pool of a smaller domain", r.poolWith(symmem.PoolOptions{Domain: single}),
				symmem.ErrInvalid,
			},
			{"a closed pool", r.closedPool(), symmem.ErrClosed},
		} {
			s := row.pool.Begin(r.World())
			_, allocErr := s.Alloc(512)
			withErr := row.pool.With(r.ctx, r.World(), func(*symmem.Scope) error {
				panic("With called the function of an invalid scope")
			})
			for call, err := range map[string]error{
				"Alloc": allocErr, "End": s.End(r.ctx), "With": withErr,
				"Register": row.pool.Register(r.ctx, r.World()),
			} {
				if !errors.Is(err, row.want) {
					r.failf("%s on %s: got %v, want %v", call, row.name, err, row.want)
				}
			}
		}
	})
}

func (r *rank) closedPool() *symmem.Pool {
	p := r.pool()
	r.ok(p.Close())
	return p
}

func TestScopeRejectsNilAndClosedGroup(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		withoutGroup := p.Begin(nil)
		r.wantErr(withoutGroup.End(r.ctx), symmem.ErrInvalid)
		r.wantErr(p.Register(r.ctx, nil), symmem.ErrInvalid)
		r.wantErr(p.With(r.ctx, r.World(), nil), symmem.ErrInvalid)
		var nilGroup *symmem.Group
		if b := r.window(p, 4096); nilGroup.IsSymmetric(b.Memory()) {
			r.failf("IsSymmetric = true in a nil group, want false")
		}
		closedGroup := r.split(r.World(), 0)
		r.checkSum(closedGroup, r.alloc(p, 4096))
		r.ok(closedGroup.Close())
		s := p.Begin(closedGroup)
		_, err := s.Alloc(8 * mib) // in a new segment, which End must register
		r.ok(err)
		r.wantErr(s.End(r.ctx), symmem.ErrClosed)
	})
}

func TestZeroScope(t *testing.T) {
	var s symmem.Scope
	_, allocErr := s.Alloc(512)
	_, allocOnErr := s.AllocOn(nil, 512)
	for call, err := range map[string]error{
		"Alloc": allocErr, "AllocOn": allocOnErr, "End": s.End(t.Context()),
	} {
		if !errors.Is(err, symmem.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", call, err)
		}
	}
	s.Abandon() // must not panic
}
