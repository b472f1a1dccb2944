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
					const pairs = 1
					for b.Loop() {
						if err := run(pairs); err != nil {
							b.Fatal(err)
						}
					}
					if name == "pool" && w.limit > 0 {
						checkLimit(b, w.limit)
					}
				})
			}
		})
	}
}

func TestWorkloadsDoNotAllocate(t *testing.T) {
	const live, pairs, maxAllocs = 200, 2000, 20
	for _, w := range workloads(live) {
		for name, run := range w.runners(t) {
			allocs := testing.AllocsPerRun(10, func() {
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
	name  string
	slots []int32
	sizes []int64
	live  int     // number of slots
	limit float64 // maximum time of a pair on the pool in nanoseconds, or 0 for no limit
}

// runners returns a function for each allocator, by name. A function runs steps until it has made
// a number of allocations (pairs), and begins where its previous call has stopped. runners has
// filled the slots.
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
	runners := map[string]func(int) error{
		"pool":    newRunner[symmem.Buffer](w, poolAllocator{pool}),
		"naive":   newRunner[extent](w, naiveAllocator{newNaive(1 << 40)}),
		"pytorch": newRunner[alloc.Block](w, coreAllocator{core}),
	}
	for name, run := range runners {
		if err := run(2 * len(w.slots)); err != nil {
			tb.Fatalf("%s: %v", name, err)
		}
	}
	return runners
}

func workloads(live int) []workload {
	return []workload{
		{name: "hot/size=4KiB", slots: []int32{0}, sizes: []int64{4 << 10}, live: 1, limit: 40},
		{name: "hot/size=32MiB", slots: []int32{0}, sizes: []int64{32 << 20}, live: 1, limit: 40},
		fifoWorkload(1000, 4<<10), randomWorkload(live), trainingWorkload(500),
	}
}

// fifoWorkload always frees the oldest block.
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

// randomWorkload frees a random block and allocates a random size.
func randomWorkload(live int) workload {
	random := rand.New(rand.NewPCG(1, uint64(live)))
	w := workload{name: fmt.Sprintf("random/live=%d", live), live: live, limit: 100}
	for range randomSteps {
		w.slots = append(w.slots, random.Int32N(int32(live)))
		w.sizes = append(w.sizes, 1+random.Int64N(1<<20))
	}
	return w
}

// trainingWorkload simulates the passes of training. In each layer, the forward pass allocates an
// activation, and the backward pass frees it, in reverse order. Both passes allocate and free
// three temporaries in each layer. Sizes are log-uniform between 512 B and 64 MiB.
func trainingWorkload(layers int) workload {
	const minSize, maxSize = 512, 64 << 20
	const temporaries, freeOnly = 3, 0
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

type allocator[B any] interface {
	alloc(bytes int64) (B, error)
	free(b B) error
}

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
				continue
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

func (a coreAllocator) alloc(bytes int64) (alloc.Block, error) {
	block, growth, err := a.core.Alloc(bytes, 0)
	for err == nil && growth.Bytes != 0 { // the core needs a segment
		_, err = a.core.AddSegment(growth, a.nextAddress())
		if err == nil {
			block, growth, err = a.core.Alloc(bytes, 0)
		}
	}
	return block, err
}

func (a coreAllocator) free(b alloc.Block) error {
	_, _, err := a.core.FreeHandle(b.Handle)
	return err
}

func (a coreAllocator) nextAddress() uint64 {
	return 1<<32 + uint64(a.core.Stats().Mapped)
}
