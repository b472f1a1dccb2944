package alloc

import (
	"math"
	"math/rand/v2"
)

// history is a sequence of requests and frees that any Core can play.
type history struct {
	steps     []step
	requested int64 // highest sum of live requests
	live      int64
	sizes     []int64 // by number of the request
	random    *rand.Rand
}

// step allocates size bytes, or frees the request of that number if size is 0.
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
	h.requested = max(h.requested, h.live)
	return len(h.sizes) - 1
}

func (h *history) free(numbers ...int) {
	for _, n := range numbers {
		h.steps = append(h.steps, step{number: n})
		h.live -= h.sizes[n]
	}
}

// between draws a size whose logarithm is uniform.
func (h *history) between(low, high int64) int64 {
	ratio := math.Log(float64(high) / float64(low))
	return int64(float64(low) * math.Exp(h.random.Float64()*ratio))
}

// randomHistory keeps 400 blocks of 512 B to 64 MiB and exchanges random ones.
func randomHistory(seed uint64) *history {
	h := newHistory(seed)
	var live []int
	for range 400 {
		live = append(live, h.alloc(h.between(512, 64*mib)))
	}
	for range 6000 {
		i := h.random.IntN(len(live))
		h.free(live[i])
		live[i] = h.alloc(h.between(512, 64*mib))
	}
	return h
}

// trainingHistory is a transformer of 24 layers trained on sequences of varying length: weights
// and optimiser state for good, activations held until the backward pass, temporaries within a
// layer, gradients until the optimiser step.
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
		var kept [][]int
		for range layers {
			temporary := h.alloc(tokens * hidden * 4)
			act := []int{
				h.alloc(tokens * hidden * 2), h.alloc(tokens * 4 * hidden * 2),
				h.alloc(tokens * 8),
			}
			h.free(temporary)
			kept = append(kept, act)
		}
		logits := h.alloc(tokens * 32_000 * 2)
		h.free(logits)
		var gradients []int
		for i := layers - 1; i >= 0; i-- {
			scratch := h.alloc(tokens * 4 * hidden * 2)
			gradients = append(gradients, h.alloc(20*hidden*hidden*2))
			h.free(kept[i]...)
			h.free(scratch)
		}
		h.free(gradients...)
	}
	return h
}

// servingHistory is a model that serves requests: weights for good, the cache of each request
// in pieces that grow with it, and per step temporaries that depend on the tokens in the batch.
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
