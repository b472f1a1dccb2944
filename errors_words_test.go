package symmem_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"symmem"
)

// TestErrorTextsDoNotRepeatThemselves checks errors to which each layer adds context, such as
// "copying 4 bytes".
func TestErrorTextsDoNotRepeatThemselves(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		p := r.pool()
		m := r.alloc(p, 1<<20).Memory()
		four := symmem.Host(make([]byte, 4))
		s := r.DefaultStream()
		_, negative := p.Alloc(-5)
		_, tooMuch := p.Alloc(1 << 60)
		_, beyond := m.Slice(8, 1<<20)
		_, ranks := r.Join(r.ctx, "g", []int{0, 0})
		_, color := r.World().Split(r.ctx, -1, 0)
		_, pool := r.NewPool(symmem.PoolOptions{Capacity: -1})
		for name, err := range map[string]error{
			"an allocation of a negative size": negative, "an allocation that is too large": tooMuch,
			"a reservation of a negative size":  p.Reserve(r.ctx, -5, nil),
			"a reservation that exceeds memory": p.Reserve(r.ctx, 1<<60, nil),
			"a copy of another size":            s.Copy(m, four), "a slice": beyond, "a group": ranks,
			"a color": color, "a pool": pool,
			"a sum": r.World().AllReduce(r.ctx, four, four, 4, symmem.Float32, symmem.Sum, s),
		} {
			if err == nil {
				r.t.Errorf("%s: got no error", name)
				continue
			}

			if twice := repeatedPart(err.Error()); twice != "" {
				r.t.Errorf("%s: %q occurs twice in %q", name, twice, err)
			}
		}

		if err := s.Copy(m, four); !strings.Contains(err.Error(), "Slice") {
			r.t.Errorf("got error %q, want one that advises Slice", err)
		}
	})
}

func TestJoinErrorsDoNotRepeatThemselves(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		if r.Rank() == 1 {
			return
		}

		o := symmem.GroupOptions{Timeout: 100 * time.Millisecond}
		_, err := r.JoinWith(r.ctx, "g", []int{0, 1}, o)
		if !errors.As(err, new(*symmem.TimeoutError)) ||
			strings.Count(err.Error(), "joining group") != 1 || repeatedPart(err.Error()) != "" {
			r.failf("got error %q, want a TimeoutError that says once which group is joined", err)
		}
	})
}

// repeatedPart splits an error text at ": " and looks for a part that repeats the previous part,
// or the verb at its beginning. It returns the first word of the repeating part, or "" if there
// is none.
func repeatedPart(text string) string {
	parts := strings.Split(text, ": ")
	for i, part := range parts[1:] {
		verb, _, _ := strings.Cut(parts[i], " ")
		next, _, _ := strings.Cut(part, " ")
		if part == parts[i] || verb == next && strings.HasSuffix(verb, "ing") {
			return next
		}
	}

	return ""
}
