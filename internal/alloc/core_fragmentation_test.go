package alloc

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// history is a sequence of requests and frees that can be replayed on any Core.
type history struct {
	steps  []step
	peak   int64   // highest total size of live requests in bytes
	live   int64   // current total size of live requests in bytes
	sizes  []int64 // sizes of all requests, by number
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

// alloc appends a request and returns its number.
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
// length. Weights and optimizer state are permanent. Temporary buffers live within a layer,
// activations until the backward pass, and gradients until the optimizer step.
func trainingHistory(seed uint64) *history {
	const layers, hidden = 24, 2048
	h := newHistory(seed)
	for range layers {
		for _, matrices := range []int64{4, 8, 8} {
			h.alloc(matrices * hidden * hidden * 2)
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

// servingHistory models inference. Weights are permanent, the cache of each request grows in
// pieces, and the sizes of temporary buffers depend on the number of tokens in the batch.
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

		i := h.random.IntN(len(requests))
		if h.random.IntN(3) == 0 {
			h.free(requests[i]...)
			requests[i] = requests[len(requests)-1]
			requests = requests[:len(requests)-1]
		}
	}

	return h
}

// outcome holds the memory that a Core needed for a history.
type outcome struct {
	mapped   int64 // peak of the mapped bytes
	segments int   // number of segments
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

// place allocates a block on stream 0, from a new segment if necessary.
func place(c *Core, size int64) (Block, error) {
	const stream = 0
	block, growth, err := c.Alloc(size, stream)
	if err != nil || growth.Bytes == 0 {
		return block, err
	}

	address := uint64(len(c.segments)+1) << 36 // segments must not overlap
	if _, err := c.AddSegment(growth, address); err != nil {
		return block, err
	}

	block, _, err = c.Alloc(size, stream)
	return block, err
}

// requiredCapacity returns the smallest Config.Capacity with which a Core can replay a history.
// The result is rounded up to a multiple of about 1/256 of the peak of requested bytes.
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

// TestCoreNeedsNoMoreMemoryThanPyTorch compares the smallest capacities with which histories can
// be replayed. Without a capacity, segments double in size, so that up to twice the needed memory
// is mapped.
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

				need := requiredCapacity(t, Default(), h)
				pytorchNeed := requiredCapacity(t, PyTorch(), h)
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

// BenchmarkHistories measures the time per step, the number of segments, and the peak of mapped
// memory relative to the peak of requested memory.
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
