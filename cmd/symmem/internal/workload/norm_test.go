package workload

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"symmem"
	"symmem/driver"
	"symmem/driver/formula"
)

// TestWrongFindsChangedElement computes a norm, and then changes one element of each output in
// turn.
func TestWrongFindsChangedElement(t *testing.T) {
	runtimes, err := symmem.OpenLocal(t.Context(), 1, symmem.Options{})
	if err != nil {
		t.Fatal(err)
	}

	rt := runtimes[0]
	defer func() {
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
	}()
	random := rand.New(rand.NewPCG(1, 1))
	n := &Norm{NormCase: formula.NewNormCase(random, 1, 3, 256, driver.BFloat16, driver.QuantPerGroup)}
	n.OnlyQuantized = false
	pool, err := rt.NewPool(symmem.PoolOptions{})
	if err != nil {
		t.Fatal(err)
	}

	var m [3]symmem.Memory
	for i := range m {
		b, err := pool.Alloc(8 * n.Rows * n.Hidden)
		if err != nil {
			t.Fatal(err)
		}

		m[i] = b.Memory()
	}

	s := rt.DefaultStream()
	err = errors.Join(n.Place(m[0], m[1], m[2]), n.Fill(0, s))
	if err == nil {
		err = errors.Join(rt.World().AllReduceRMSNorm(t.Context(), n.Args, s), n.Read(s),
			s.Synchronize(t.Context()))
	}

	if err != nil {
		t.Fatal(err)
	}

	if wrong, first := n.CountWrong(); wrong != 0 {
		t.Fatalf("Wrong() = %d, %q after a correct call, want 0", wrong, first)
	}

	for i := range n.outputs {
		o := &n.outputs[i]
		o.got[o.elementSize] ^= 1
		wrong, first := n.CountWrong()
		if wrong != 1 || !strings.HasPrefix(first, "at index 1 of the "+o.name) {
			t.Errorf("Wrong() = %d, %q after a change of element 1 of the %s, want 1", wrong, first,
				o.name)
		}

		o.got[o.elementSize] ^= 1
	}
}
