package alloc

import (
	"errors"
	"fmt"
	"testing"
)

// outcome is what a Core made of a history.
type outcome struct {
	mapped   int64 // peak
	segments int   // made in all
}

// play plays a history. No segment is given back: that would be collective for symmetric memory.
func play(c *Core, h *history) (outcome, error) {
	blocks := make([]Block, 0, len(h.sizes))
	for _, s := range h.steps {
		if s.size == 0 {
			if _, err := c.Free(blocks[s.number]); err != nil {
				return outcome{}, err
			}
			continue
		}
		v, err := place(c, s.size)
		if err != nil {
			return outcome{}, err
		}
		blocks = append(blocks, v)
	}
	return outcome{c.Stats().MappedPeak, len(c.segments)}, nil
}

func place(c *Core, size int64) (Block, error) {
	v, grow, err := c.Alloc(size, 0)
	if err != nil || grow.Bytes == 0 {
		return v, err
	}
	if _, err := c.AddSegment(grow, uint64(len(c.segments)+1)<<36); err != nil {
		return v, err
	}
	v, _, err = c.Alloc(size, 0)
	return v, err
}

// leastCapacity returns the smallest capacity, in steps of 1/256 of the request peak, under
// which a history runs to its end.
func leastCapacity(tb testing.TB, config Config, h *history) int64 {
	tb.Helper()
	step := h.requested / 256
	low, high := h.requested-step, 4*h.requested
	for high-low > step {
		config.Capacity = (low + high) / 2
		_, err := play(newCore(tb, config), h)
		switch {
		case err == nil:
			high = config.Capacity
		case errors.Is(err, ErrOutOfMemory):
			low = config.Capacity
		default:
			tb.Fatal(err)
		}
	}
	return high
}

var shapes = []struct {
	name string
	make func(seed uint64) *history
}{
	{"random", randomHistory},
	{"training", trainingHistory},
	{"serving", servingHistory},
}

// Under a capacity, as on any GPU, memory is what a history needs at least. Without one, the
// doubling of segments maps ahead of need, at most as much again; that is logged, not compared.
func TestWeNeedNoMoreMemoryThanPyTorchInAFewSegments(t *testing.T) {
	for _, shape := range shapes {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%s history %d", shape.name, seed), func(t *testing.T) {
				h := shape.make(seed)
				ours, err := play(newCore(t, Default()), h)
				if err != nil {
					t.Fatal(err)
				}
				theirs, err := play(newCore(t, PyTorch()), h)
				if err != nil {
					t.Fatal(err)
				}
				need, theirNeed := leastCapacity(t, Default(), h), leastCapacity(t, PyTorch(), h)
				peak := float64(h.requested)
				t.Logf("of the request peak: needed %.3f (PyTorch %.3f), mapped without a "+
					"capacity %.3f (%.3f); segments %d (%d)", float64(need)/peak,
					float64(theirNeed)/peak, float64(ours.mapped)/peak,
					float64(theirs.mapped)/peak, ours.segments, theirs.segments)
				if need > theirNeed || ours.segments*10 > theirs.segments {
					t.Error("we need more memory, or more than a tenth of the segments")
				}
				if bound := 2 * max(need, 64*mib); ours.mapped > bound {
					t.Errorf("mapped %d bytes, more than twice the need of %d", ours.mapped, need)
				}
			})
		}
	}
}

// BenchmarkHistories plays whole histories, growth and all, and reports what they needed.
func BenchmarkHistories(b *testing.B) {
	for _, shape := range shapes {
		for _, config := range []Config{Default(), PyTorch()} {
			b.Run(shape.name+"/"+config.Policy.String(), func(b *testing.B) {
				h := shape.make(0)
				var got outcome
				for b.Loop() {
					got, _ = play(newCore(b, config), h)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/
					float64(b.N*len(h.steps)), "ns/step")
				b.ReportMetric(float64(got.segments), "segments")
				b.ReportMetric(float64(got.mapped)/float64(h.requested), "mapped/peak")
			})
		}
	}
}
