package symmem_test

import (
	"errors"
	"testing"

	"symmem"
)

// TestScopeEndRegistersNewMemory checks that memory from a scope is not registered with the scope's
// group before End, and that afterwards, collectives on it take the window path.
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
			r.failf("got %+v, want 1 registration, and 1 call on the window path (checkSum)", stats)
		}
	})
}

// TestScopeEndWithoutNewMemory uses scopes on one of two ranks. Without new memory, End must not
// wait for the other rank to agree to a registration.
func TestScopeEndWithoutNewMemory(t *testing.T) {
	const scopes, scopingRank = 10, 0
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		r.window(p, mib) // maps and registers the pool's only segment
		before := r.World().Stats().Agreements
		if r.Rank() == scopingRank {
			for range scopes {
				s := p.Begin(r.World())
				r.ok(s.End(r.ctx))
			}
		}

		if n := r.World().Stats().Agreements; n != before {
			r.failf("%d agreements after the scopes, want %d as before", n, before)
		}
	})
}

// TestNestedScopes ends a scope of a one-rank group inside a scope of the world. End registers all
// memory of the pool, but only with the group of its scope.
func TestNestedScopes(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		single := r.split(r.World(), r.Rank()) // a group of one rank
		outer := p.Begin(r.World())
		a, err := outer.Alloc(mib)
		r.ok(err)
		inner := p.Begin(single)
		b, err := inner.Alloc(8 * mib) // does not fit into the first segment
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

// TestEndedScopeRejectsCalls checks that End and Alloc return ErrClosed after the end of a scope,
// by End or by Abandon, and that another Abandon does nothing.
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
			if err := s.End(r.ctx); !errors.Is(err, symmem.ErrClosed) {
				r.failf("End after %s: got %v, want ErrClosed", name, err)
			}

			if _, err := s.Alloc(512); !errors.Is(err, symmem.ErrClosed) {
				r.failf("Alloc after %s: got %v, want ErrClosed", name, err)
			}
		}
	})
}

// TestScopeDoesNotAllocate checks that a scope without new memory allocates nothing on the Go heap,
// even with the usual deferred Abandon.
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

// TestNextEndRegistersMemoryOfAbandonedScope abandons a scope with new memory. The memory must stay
// allocated without a registration, until the next scope of the pool ends.
func TestNextEndRegistersMemoryOfAbandonedScope(t *testing.T) {
	errTest := errors.New("test error")
	for _, row := range []struct {
		name string
		// abandon allocates the returned buffer in a scope of the world, and abandons the scope.
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
			err := p.With(r.ctx, r.World(), func(s *symmem.Scope) error {
				var allocErr error
				b, allocErr = s.Alloc(mib)
				r.ok(allocErr)
				return errTest
			})
			r.wantErr(err, errTest)
			return b
		}},
		{"by a panic in With", func(r *rank, p *symmem.Pool) (b symmem.Buffer) {
			defer func() {
				if recover() != any(errTest) {
					r.failf("With did not propagate the panic")
				}
			}()
			err := p.With(r.ctx, r.World(), func(s *symmem.Scope) error {
				var allocErr error
				b, allocErr = s.Alloc(mib)
				r.ok(allocErr)
				panic(errTest)
			})
			r.failf("With returned %v, want a panic", err)
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

// TestDisabledScopeAllocatesLocalMemory checks that a disabled scope allocates outside its pool.
// The ranks may allocate different sizes, and collectives on the memory take the plain path.
func TestDisabledScopeAllocatesLocalMemory(t *testing.T) {
	const count = 1024 // elements to sum; the buffers are larger
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		s := p.BeginDisabled()
		b, err := s.Alloc(int64(1+r.Rank()) * mib)
		r.ok(err)
		if s.Enabled() {
			r.failf("Enabled() = true, want false")
		}

		if used := p.Stats().Used; b.Pool() == p || used != 0 {
			r.failf("the disabled scope allocated from the pool, which has %d bytes in use; want 0", used)
		}

		r.ok(s.End(r.ctx))
		r.wantErr(s.End(r.ctx), symmem.ErrClosed)
		r.ok(r.World().Check(r.ctx))
		m := b.Memory()
		r.fill(b, 1)
		r.ok(r.World().AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, nil))
		r.synchronize()
		v := r.floats(b)
		if lastSum, next := v[count-1], v[count]; lastSum != 2 || next != 1 {
			r.failf("elements %d and %d = %v and %v, want the sum 2 and the initial value 1", count-1,
				count, lastSum, next)
		}

		if paths := r.World().Stats().Paths; paths["plain"] != 1 || paths["window"] != 0 {
			r.failf("Paths = %v, want 1 plain", paths)
		}

		r.ok(b.Free())
	})
}

// TestScopeEndReportsRegistrationError begins scopes whose memory cannot be registered with the
// world. All methods of these scopes must return the error that Register returns.
func TestScopeEndReportsRegistrationError(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		single := r.split(r.World(), r.Rank()) // a group of one rank
		for _, row := range []struct {
			name string
			pool *symmem.Pool
			want error
		}{
			{
				name: "a pool without a domain",
				pool: r.poolWith(symmem.PoolOptions{}), want: symmem.ErrInvalid,
			},
			{
				name: "a pool of a smaller domain",
				pool: r.poolWith(symmem.PoolOptions{Domain: single}), want: symmem.ErrInvalid,
			},
			{name: "a closed pool", pool: r.closedPool(), want: symmem.ErrClosed},
		} {
			s := row.pool.Begin(r.World())
			_, allocErr := s.Alloc(512)
			endErr := s.End(r.ctx)
			withErr := row.pool.With(r.ctx, r.World(), func(*symmem.Scope) error {
				panic("With called the function of an invalid scope")
			})
			registerErr := row.pool.Register(r.ctx, r.World())
			for call, err := range map[string]error{
				"Alloc": allocErr, "End": endErr, "With": withErr, "Register": registerErr,
			} {
				if !errors.Is(err, row.want) {
					r.failf("%s on %s: got %v, want %v", call, row.name, err, row.want)
				}
			}
		}
	})
}

// closedPool returns a pool of the world that is closed.
func (r *rank) closedPool() *symmem.Pool {
	p := r.pool()
	r.ok(p.Close())
	return p
}

// TestScopeRejectsNilAndClosedGroup checks that calls with a nil group return ErrInvalid, and that
// End returns ErrClosed if it must register new memory with a closed group.
func TestScopeRejectsNilAndClosedGroup(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p := r.pool()
		withoutGroup := p.Begin(nil)
		r.wantErr(withoutGroup.End(r.ctx), symmem.ErrInvalid)
		r.wantErr(p.Register(r.ctx, nil), symmem.ErrInvalid)
		r.wantErr(p.With(r.ctx, r.World(), nil), symmem.ErrInvalid) // a nil function
		var nilGroup *symmem.Group
		registered := r.window(p, 4096)
		if nilGroup.IsSymmetric(registered.Memory()) {
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

// TestZeroScope checks that the zero value returns ErrInvalid and does not panic.
func TestZeroScope(t *testing.T) {
	var s symmem.Scope
	_, allocErr := s.Alloc(512)
	_, allocOnErr := s.AllocOn(nil, 512)
	endErr := s.End(t.Context())
	for call, err := range map[string]error{
		"Alloc": allocErr, "AllocOn": allocOnErr, "End": endErr,
	} {
		if !errors.Is(err, symmem.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", call, err)
		}
	}

	s.Abandon() // must not panic
}
