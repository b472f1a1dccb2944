package symmem_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"symmem"
)

// together runs a function on every rank of a local world and closes it.
func together(t *testing.T, n int, o symmem.Options, f func(rt *symmem.Runtime) error) {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	runtimes, err := symmem.OpenLocal(t.Context(), n, o)
	if err != nil {
		t.Fatal(err)
	}
	var ranks sync.WaitGroup
	for r, rt := range runtimes {
		ranks.Go(func() {
			if err := f(rt); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	ranks.Wait()
	var closing sync.WaitGroup
	for r, rt := range runtimes {
		closing.Go(func() {
			if err := rt.Close(); err != nil {
				t.Errorf("closing rank %d: %v", r, err)
			}
		})
	}
	closing.Wait()
}

func TestAllReduceOverWindowsSumsOnEveryRank(t *testing.T) {
	together(t, 3, symmem.Options{}, func(rt *symmem.Runtime) error {
		ctx := context.Background()
		pool, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
		if err != nil {
			return err
		}
		var b symmem.Buffer
		err = pool.With(ctx, rt.World(), func(s *symmem.Scope) (err error) {
			b, err = s.Alloc(1 << 20)
			return err
		})
		if err != nil {
			return err
		}
		v, err := symmem.View[float32](b)
		if err != nil {
			return err
		}
		for i := range v {
			v[i] = float32(rt.Rank() + i%5)
		}
		m := b.Memory()
		if err := rt.World().AllReduce(
			ctx, m, m, int64(len(v)), symmem.Float32, symmem.Sum, nil); err != nil {
			return err
		}
		if err := rt.DefaultStream().Synchronize(ctx); err != nil {
			return err
		}
		for i := range v {
			if v[i] != float32(3+3*(i%5)) {
				t.Errorf("element %d is %v", i, v[i])
				break
			}
		}
		if paths := rt.World().Stats().Paths; paths["window"] != 1 {
			t.Errorf("paths taken: %v", paths)
		}
		return rt.World().Check(ctx)
	})
}

func TestAnExtraAllocationOnOneRankIsNamedOnEveryRank(t *testing.T) {
	var mu sync.Mutex
	texts := map[string]int{}
	together(t, 3, symmem.Options{CallSites: true}, func(rt *symmem.Runtime) error {
		ctx := context.Background()
		pool, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
		if err != nil {
			return err
		}
		if rt.Rank() == 2 {
			if _, err := pool.Alloc(4096); err != nil {
				return err
			}
		}
		err = pool.With(ctx, rt.World(), func(s *symmem.Scope) error {
			_, err := s.Alloc(1 << 20)
			return err
		})
		var d *symmem.DivergenceError
		if !errors.As(err, &d) {
			t.Errorf("rank %d: %v", rt.Rank(), err)
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		texts[d.Error()]++
		return nil
	})
	if len(texts) != 1 {
		t.Errorf("texts: %v", texts)
	}
	t.Log(texts)
}

func TestADifferentCountIsADivergence(t *testing.T) {
	together(t, 2, symmem.Options{}, func(rt *symmem.Runtime) error {
		ctx := context.Background()
		x := make([]float32, 10)
		m := symmem.Host(x)
		err := rt.World().AllReduce(ctx, m, m, int64(5+rt.Rank()), symmem.Float32, symmem.Sum, nil)
		if err == nil {
			err = rt.DefaultStream().Synchronize(ctx)
		}
		var d *symmem.DivergenceError
		if !errors.As(err, &d) {
			t.Errorf("rank %d: %v", rt.Rank(), err)
		}
		t.Log(err)
		return nil
	})
}

func TestARankThatDoesNotComeIsNamed(t *testing.T) {
	together(t, 3, symmem.Options{Timeout: 500 * time.Millisecond}, func(rt *symmem.Runtime) error {
		if rt.Rank() == 1 {
			return nil
		}
		err := rt.World().Check(context.Background())
		var late *symmem.TimeoutError
		if !errors.As(err, &late) || len(late.Missing) != 1 || late.Missing[0] != 1 {
			t.Errorf("rank %d: %v", rt.Rank(), err)
		}
		t.Log(err)
		return nil
	})
}
