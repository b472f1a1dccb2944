package symmem_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"symmem"
	"symmem/internal/alloc"
)

// BenchmarkAlloc measures pairs of Pool.Alloc and Buffer.Free. For comparison, it runs the same
// requests on a naive best-fit allocator, and on the placement core of pools (package alloc) with
// PyTorch's policy and sizing. Unlike a pool, these have no lock and record no history.
func BenchmarkAlloc(b *testing.B) {
	live := 10_000
	if testing.Short() {
		live = 1000
	}

	for _, w := range workloads(live) {
		b.Run(w.name, func(b *testing.B) {
			runners := w.runners(b)
			for _, name := range slices.Sorted(maps.Keys(runners)) {
				b.Run("by="+name, func(b *testing.B) {
					run := runners[name]
					b.ReportAllocs()
					const pairs = 1 // of Alloc and Free in an iteration
					for b.Loop() {
						if err := run(pairs); err != nil {
							b.Fatal(err)
						}
					}

					if name == "pool" && w.limitNs > 0 {
						checkLimit(b, w.limitNs)
					}
				})
			}
		})
	}
}

// TestWorkloadsDoNotAllocate checks that no runner allocates on the Go heap for each pair. A few
// allocations are allowed, because tables of an allocator may grow.
func TestWorkloadsDoNotAllocate(t *testing.T) {
	const live, pairs, maxAllocs = 200, 2000, 20 // at most 1 allocation in 100 pairs
	for _, w := range workloads(live) {
		for name, run := range w.runners(t) {
			const runs = 10
			allocs := testing.AllocsPerRun(runs, func() {
				if err := run(pairs); err != nil {
					t.Fatal(err)
				}
			})
			if allocs > maxAllocs {
				t.Errorf("%s by %s: %d pairs make %v allocations, want at most %d", w.name, name, pairs,
					allocs, maxAllocs)
			}
		}
	}
}

// workload is a cyclic sequence of steps. Each of its slots holds at most one live block. Step i
// frees the block in slot slots[i], if there is one. Unless sizes[i] is 0, it then allocates
// sizes[i] bytes for the slot.
type workload struct {
	name    string
	slots   []int32 // by step
	sizes   []int64 // by step; 0 allocates nothing
	live    int     // number of slots
	limitNs float64 // maximum time of a pair on the pool in nanoseconds, or 0 for no limit
}

// runners returns a function for each allocator, by name. A function runs steps until it has made
// the given number of allocations (pairs). It begins where its previous call has stopped. Before
// runners returns, it runs each function until the slots are filled.
func (w workload) runners(tb testing.TB) map[string]func(pairs int) error {
	tb.Helper()
	rt := openAlone(tb)
	pool, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
	if err != nil {
		tb.Fatal(err)
	}

	core, err := alloc.New(alloc.Config{Policy: alloc.AddressOrder, Sizing: alloc.Stepped})
	if err != nil {
		tb.Fatal(err)
	}

	const naiveCapacity = 1 << 40 // more than the live blocks of all workloads
	runners := map[string]func(int) error{
		"pool":    newRunner[symmem.Buffer](w, poolAllocator{pool}),
		"naive":   newRunner[extent](w, naiveAllocator{newNaive(naiveCapacity)}),
		"pytorch": newRunner[alloc.Block](w, coreAllocator{core}),
	}
	for name, run := range runners {
		// At least two cycles: the second one is the first that begins with filled slots.
		if err := run(2 * len(w.slots)); err != nil {
			tb.Fatalf("%s: %v", name, err)
		}
	}

	return runners
}

// workloads returns all workloads. The random one has the given number of live blocks. The hot ones
// allocate and free one block again and again.
func workloads(live int) []workload {
	const fifoLive, fifoBytes, layers = 1000, 4 << 10, 500
	return []workload{
		{name: "hot/size=4KiB", slots: []int32{0}, sizes: []int64{4 << 10}, live: 1, limitNs: 40},
		{name: "hot/size=32MiB", slots: []int32{0}, sizes: []int64{32 << 20}, live: 1, limitNs: 40},
		fifoWorkload(fifoLive, fifoBytes),
		randomWorkload(live),
		trainingWorkload(layers),
	}
}

// fifoWorkload has blocks of one size, and always frees the oldest one.
func fifoWorkload(live int, bytes int64) workload {
	w := workload{name: fmt.Sprintf("fifo/live=%d", live), live: live}
	for i := range live {
		w.slots = append(w.slots, int32(i))
		w.sizes = append(w.sizes, bytes)
	}

	return w
}

// randomSteps is the length of randomWorkload. The processor's branch predictor cannot learn such
// a long sequence.
const randomSteps = 1 << 17

// randomWorkload frees a random block and allocates a random size of at most 1 MiB.
func randomWorkload(live int) workload {
	const maxSize = 1 << 20
	random := rand.New(rand.NewPCG(1, uint64(live))) // the same sequence in each run
	w := workload{name: fmt.Sprintf("random/live=%d", live), live: live, limitNs: 100}
	for range randomSteps {
		w.slots = append(w.slots, random.Int32N(int32(live)))
		w.sizes = append(w.sizes, 1+random.Int64N(maxSize))
	}

	return w
}

// trainingWorkload simulates the passes of training. The forward pass allocates an activation in
// each layer. The backward pass visits the layers in reverse order and frees their activations.
// Both passes allocate and free three temporaries in each layer. Sizes are log-uniform between 512
// B and 64 MiB. The first slots hold activations, one per layer, and the others hold temporaries.
func trainingWorkload(layers int) workload {
	const minSize, maxSize = 512, 64 << 20
	const temporaries = 3
	const freeOnly = 0 // the size of a step that allocates nothing
	random := rand.New(rand.NewPCG(2, uint64(layers)))
	drawSize := func() int64 {
		return int64(minSize * math.Exp2(random.Float64()*math.Log2(maxSize/minSize)))
	}
	w := workload{name: fmt.Sprintf("training/layers=%d", layers), live: layers + temporaries}
	addStep := func(slot int, size int64) {
		w.slots = append(w.slots, int32(slot))
		w.sizes = append(w.sizes, size)
	}
	addTemporaries := func() {
		for i := range temporaries {
			addStep(layers+i, drawSize())
		}

		for i := range temporaries {
			addStep(layers+i, freeOnly)
		}
	}
	for layer := range layers {
		addStep(layer, drawSize())
		addTemporaries()
	}

	for layer := layers - 1; layer >= 0; layer-- {
		addTemporaries()
		addStep(layer, freeOnly)
	}

	return w
}

// allocator is the common interface of the compared allocators. B is a block.
type allocator[B any] interface {
	alloc(bytes int64) (B, error)
	free(b B) error
}

// newRunner returns a function that runs the steps of w on a, as described at runners.
func newRunner[B any, A allocator[B]](w workload, a A) func(pairs int) error {
	blocks, isLive := make([]B, w.live), make([]bool, w.live) // by slot
	next := 0
	return func(pairs int) error {
		for pairs > 0 {
			slot, size := w.slots[next], w.sizes[next]
			next++
			if next == len(w.slots) {
				next = 0
			}

			if isLive[slot] {
				if err := a.free(blocks[slot]); err != nil {
					return fmt.Errorf("freeing slot %d: %w", slot, err)
				}
			}

			isLive[slot] = size > 0
			if size == 0 {
				continue // a step that only frees is not counted as a pair
			}

			b, err := a.alloc(size)
			if err != nil {
				return fmt.Errorf("allocating %d bytes: %w", size, err)
			}

			blocks[slot] = b
			pairs--
		}

		return nil
	}
}

type poolAllocator struct{ pool *symmem.Pool }

func (a poolAllocator) alloc(bytes int64) (symmem.Buffer, error) { return a.pool.Alloc(bytes) }
func (a poolAllocator) free(b symmem.Buffer) error               { return b.Free() }

type naiveAllocator struct{ naive *naive }

func (a naiveAllocator) alloc(bytes int64) (extent, error) { return a.naive.alloc(bytes) }
func (a naiveAllocator) free(e extent) error {
	a.naive.release(e)
	return nil
}

// coreAllocator uses a placement core. Its segments are ranges of addresses without memory.
type coreAllocator struct{ core *alloc.Core }

// alloc adds segments until the core has room for the block.
func (a coreAllocator) alloc(bytes int64) (alloc.Block, error) {
	const defaultStream = 0
	block, growth, err := a.core.Alloc(bytes, defaultStream)
	for err == nil && growth.Bytes != 0 { // the core needs a segment
		_, err = a.core.AddSegment(growth, a.nextAddress())
		if err == nil {
			block, growth, err = a.core.Alloc(bytes, defaultStream)
		}
	}

	return block, err
}

func (a coreAllocator) free(b alloc.Block) error {
	_, _, err := a.core.FreeHandle(b.Handle)
	return err
}

// nextAddress returns the address after the segments so far. The first one begins at 1<<32.
func (a coreAllocator) nextAddress() uint64 {
	return 1<<32 + uint64(a.core.Stats().Mapped)
}
