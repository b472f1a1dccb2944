package alloc

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// history is a sequence of requests and frees for any Core.
type history struct {
	steps  []step
	peak   int64   // highest sum of live requests
	live   int64   // current sum of live requests
	sizes  []int64 // by request number
	random *rand.Rand
}

// step allocates size bytes. If size is 0, it frees the block of request number.
type step struct {
	size   int64
	number int
}

func newHistory(seed uint64) *history {
	return &history{random: rand.New(rand.NewPCG(seed, 77))}
}

func (h *history) alloc(size int64) int {
	h.steps = append(h.steps, step{size: size})
	h.sizes = append(h.sizes, size)
	h.live += size
	h.peak = max(h.peak, h.live)
	return len(h.sizes) - 1
}

func (h *history) free(numbers ...int) {
	for _, n := range numbers {
		h.steps = append(h.steps, step{number: n})
		h.live -= h.sizes[n]
	}
}

// drawSize draws a size in [low, high] from a log-uniform distribution.
func (h *history) drawSize(low, high int64) int64 {
	ratio := math.Log(float64(high) / float64(low))
	return int64(float64(low) * math.Exp(h.random.Float64()*ratio))
}

// randomHistory keeps 400 live blocks of 512 B to 64 MiB and replaces random ones.
func randomHistory(seed uint64) *history {
	h := newHistory(seed)
	var live []int
	for range 400 {
		live = append(live, h.alloc(h.drawSize(512, 64*mib)))
	}
	for range 6000 {
		i := h.random.IntN(len(live))
		h.free(live[i])
		live[i] = h.alloc(h.drawSize(512, 64*mib))
	}
	return h
}

// trainingHistory models the training of a transformer with 24 layers on sequences of varying
// length. Weights and optimizer state are permanent. Temporaries live within a layer, activations
// until the backward pass, gradients until the optimizer step.
func trainingHistory(seed uint64) *history {
	const layers, hidden = 24, 2048
	h := newHistory(seed)
	for range layers {
		for _, n := range []int64{4, 8, 8} {
			h.alloc(n * hidden * hidden * 2)
		}
	}
	for range 12 {
		tokens := 512 + 64*h.random.Int64N(56)
		var activations [][]int
		for range layers {
			temporary := h.alloc(tokens * hidden * 4)
			layer := []int{
				h.alloc(tokens * hidden * 2), h.alloc(tokens * 4 * hidden * 2),
				h.alloc(tokens * 8),
			}
			h.free(temporary)
			activations = append(activations, layer)
		}
		logits := h.alloc(tokens * 32_000 * 2)
		h.free(logits)
		var gradients []int
		for i := layers - 1; i >= 0; i-- {
			scratch := h.alloc(tokens * 4 * hidden * 2)
			gradients = append(gradients, h.alloc(20*hidden*hidden*2))
			h.free(activations[i]...)
			h.free(scratch)
		}
		h.free(gradients...)
	}
	return h
}

// servingHistory models inference. Weights are permanent, each request's cache grows in pieces, and
// the sizes of temporaries depend on the number of tokens in the batch.
func servingHistory(seed uint64) *history {
	const layers, hidden = 16, 4096
	h := newHistory(seed)
	for range layers {
		h.alloc(12 * hidden * hidden)
	}
	var requests [][]int
	for range 600 {
		if len(requests) < 32 {
			prompt := 16 + h.random.Int64N(2048)
			requests = append(requests, []int{h.alloc(prompt * hidden * 4)})
		}
		tokens := int64(len(requests)) + h.random.Int64N(1024)
		for range layers / 4 {
			a, b := h.alloc(tokens*hidden*2), h.alloc(tokens*3*hidden*2)
			c := h.alloc(tokens * 8)
			h.free(a, b, c)
		}
		for i := range requests {
			if h.random.IntN(4) == 0 {
				requests[i] = append(requests[i], h.alloc(16*hidden*4))
			}
		}
		if i := h.random.IntN(len(requests)); h.random.IntN(3) == 0 {
			h.free(requests[i]...)
			requests[i] = requests[len(requests)-1]
			requests = requests[:len(requests)-1]
		}
	}
	return h
}

type outcome struct {
	mapped   int64 // peak in bytes
	segments int   // number created in total
}

// replay applies a history to a Core. It never trims the Core, because Trim is collective.
func replay(c *Core, h *history) (outcome, error) {
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

// requiredCapacity returns the smallest sufficient capacity, in steps of 1/256 of the peak of
// requested bytes.
func requiredCapacity(tb testing.TB, config Config, h *history) int64 {
	tb.Helper()
	step := h.peak / 256
	low, high := h.peak-step, 4*h.peak
	for high-low > step {
		config.Capacity = (low + high) / 2
		_, err := replay(newCore(tb, config), h)
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

var workloads = []struct {
	name string
	make func(seed uint64) *history
}{
	{"random", randomHistory},
	{"training", trainingHistory},
	{"serving", servingHistory},
}

// Only a capacity limit shows the needed memory: without one, segments double in size and up to
// twice the needed memory may be mapped.
func TestCoreNeedsNoMoreMemoryThanPyTorch(t *testing.T) {
	for _, workload := range workloads {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%s history %d", workload.name, seed), func(t *testing.T) {
				h := workload.make(seed)
				ours, err := replay(newCore(t, Default()), h)
				if err != nil {
					t.Fatal(err)
				}
				pytorch, err := replay(newCore(t, PyTorch()), h)
				if err != nil {
					t.Fatal(err)
				}
				need, pytorchNeed := requiredCapacity(t, Default(), h), requiredCapacity(t, PyTorch(), h)
				peak := float64(h.peak)
				t.Logf("relative to the peak of requested bytes: needed %.3f (PyTorch %.3f), mapped "+
					"without a capacity limit %.3f (PyTorch %.3f); segments %d (PyTorch %d)",
					float64(need)/peak, float64(pytorchNeed)/peak, float64(ours.mapped)/peak,
					float64(pytorch.mapped)/peak, ours.segments, pytorch.segments)
				if need > pytorchNeed {
					t.Errorf("needs %d bytes, want at most PyTorch's %d", need, pytorchNeed)
				}
				if ours.segments*10 > pytorch.segments {
					t.Errorf("has %d segments, want at most a tenth of PyTorch's %d", ours.segments,
						pytorch.segments)
				}
				if bound := 2 * max(need, 64*mib); ours.mapped > bound {
					t.Errorf("mapped %d bytes, want at most %d", ours.mapped, bound)
				}
			})
		}
	}
}

func BenchmarkHistories(b *testing.B) {
	for _, workload := range workloads {
		for _, config := range []Config{Default(), PyTorch()} {
			b.Run(workload.name+"/"+config.Policy.String(), func(b *testing.B) {
				h := workload.make(0)
				var got outcome
				for b.Loop() {
					got, _ = replay(newCore(b, config), h)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/
					float64(b.N*len(h.steps)), "ns/step")
				b.ReportMetric(float64(got.segments), "segments")
				b.ReportMetric(float64(got.mapped)/float64(h.peak), "mapped/peak")
			})
		}
	}
}
