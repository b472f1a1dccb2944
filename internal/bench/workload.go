package bench

import (
	"math"
	"math/rand/v2"
)

// A workload is an endless sequence of requests over a fixed number of slots, each of which holds
// one live block: step i frees what slot slots[i] holds, if anything, and, if sizes[i] is not 0,
// allocates that many bytes into it. The sequence is drawn before anything is timed, and repeats.
type workload struct {
	name   string
	params map[string]any
	// bar is the most nanoseconds for a pair of Alloc and Free, or 0.
	bar   float64
	slots []int32
	sizes []int64
	live  int
	// pairs is how many allocations, each with its free, are in the sequence.
	pairs int
}

func (w workload) withPairs() workload {
	w.pairs = 0
	for _, size := range w.sizes {
		if size > 0 {
			w.pairs++
		}
	}
	return w
}

// workloads are what bench alloc measures.
func workloads(live int) []workload {
	return []workload{
		hotPair("4KiB", 4<<10), hotPair("32MiB", 32<<20),
		fifo(1000, 4<<10), randomVictims(live), training(500),
	}
}

// hotPair allocates and frees one size again and again.
func hotPair(size string, bytes int64) workload {
	return workload{
		name: "hot pair", params: map[string]any{"size": size}, bar: 40,
		slots: []int32{0, 0}, sizes: []int64{bytes, 0}, live: 1,
	}.withPairs()
}

// fifo frees the oldest of so many live blocks.
func fifo(live int, bytes int64) workload {
	w := workload{
		name: "fifo", params: map[string]any{"live": live, "size": "4KiB"}, live: live,
	}
	for i := range live {
		w.slots, w.sizes = append(w.slots, int32(i)), append(w.sizes, bytes)
	}
	return w.withPairs()
}

// randomSteps is long enough that the free list never settles into a cycle that a cache learns.
const randomSteps = 1 << 17

// randomVictims frees a random one of so many live blocks and allocates a random size.
func randomVictims(live int) workload {
	random := rand.New(rand.NewPCG(1, uint64(live)))
	w := workload{
		name: "random", params: map[string]any{"live": live, "sizes": "1B-1MiB"}, bar: 100,
		live: live,
	}
	for range randomSteps {
		w.slots = append(w.slots, random.Int32N(int32(live)))
		w.sizes = append(w.sizes, 1+random.Int64N(1<<20))
	}
	return w.withPairs()
}

// training is a forward pass that keeps one activation a layer and drops three temporaries, and a
// backward pass that frees the activations in the reverse order. Sizes are drawn so that their
// logarithms are even between 512 B and 64 MiB.
func training(layers int) workload {
	random := rand.New(rand.NewPCG(2, uint64(layers)))
	draw := func() int64 {
		return int64(512 * math.Exp2(random.Float64()*math.Log2(64<<20/512)))
	}
	w := workload{
		name: "training", params: map[string]any{"layers": layers}, live: layers + 3,
	}
	add := func(slot int, size int64) {
		w.slots, w.sizes = append(w.slots, int32(slot)), append(w.sizes, size)
	}
	temporaries := func() {
		for t := range 3 {
			add(layers+t, draw())
		}
		for t := range 3 {
			add(layers+t, 0)
		}
	}
	for layer := range layers {
		add(layer, draw())
		temporaries()
	}
	for layer := layers - 1; layer >= 0; layer-- {
		temporaries()
		add(layer, 0)
	}
	return w.withPairs()
}
