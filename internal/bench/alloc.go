package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"symmem"
	"symmem/internal/alloc"
)

// Alloc measures pairs of Pool.Alloc and Buffer.Free, with the ledger on as always, against two
// baselines: a naive best fit, and our placement core set to PyTorch's policy and sizing, without
// lock or ledger. live is the number of blocks of the random workload.
func Alloc(ctx context.Context, p Plan, live int) (*Report, error) {
	report := NewReport("alloc")
	for _, w := range workloads(live) {
		if err := allocOne(ctx, p, w, report); err != nil {
			return report, err
		}
	}
	return report, nil
}

func allocOne(ctx context.Context, p Plan, w workload, report *Report) (err error) {
	runtimes, err := symmem.OpenLocal(ctx, 1, p.options())
	if err != nil {
		return err
	}
	rt := runtimes[0]
	defer func() { err = errors.Join(err, rt.Close()) }()
	pool, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
	if err != nil {
		return err
	}
	cores, err := alloc.New(alloc.PyTorch())
	if err != nil {
		return err
	}
	c := Case{
		Name: w.name, Params: w.params, Bar: w.bar,
		Ours: Variant{Run: player[symmem.Buffer](w, poolAllocator{pool})},
		Baselines: []Variant{
			{Name: "naive best fit", Run: player[extent](w, naiveAllocator{newNaive(1 << 40)})},
			{Name: "PyTorch's policy", Run: player[alloc.Block](w, coreAllocator{cores})},
		},
	}
	if w.live == 1 {
		// So short a pair would mostly measure the player.
		c.Ours.Run = func(pairs int) error { return hotPairs(pool, w.sizes[0], pairs) }
		c.Baselines = append(c.Baselines, Variant{Name: "two sync.Mutex pairs", Run: mutexPairs})
	}
	return report.Add(p.Measure(c))
}

// hotPairs allocates and frees one size.
func hotPairs(pool *symmem.Pool, bytes int64, pairs int) error {
	for range pairs {
		b, err := pool.Alloc(bytes)
		if err != nil {
			return fmt.Errorf("allocating %d bytes: %w", bytes, err)
		}
		if err := b.Free(); err != nil {
			return fmt.Errorf("freeing %d bytes: %w", bytes, err)
		}
	}
	return nil
}

// mutexPairs locks and unlocks a mutex twice, which is what a pair of calls that are safe for
// concurrent use costs in Go before it does anything: a yardstick for the machine.
func mutexPairs(pairs int) error {
	var mu sync.Mutex
	for range 2 * pairs {
		mu.Lock()
		mu.Unlock() //nolint:staticcheck // Locking is what is measured.
	}
	return nil
}

// allocator is what a workload is played on.
type allocator[B any] interface {
	alloc(bytes int64) (B, error)
	free(b B) error
}

// player returns a function that plays a number of pairs of the workload and remembers where it
// stopped. All live slots are filled first.
func player[B any, A allocator[B]](w workload, a A) func(pairs int) error {
	blocks, held := make([]B, w.live), make([]bool, w.live)
	at := 0
	return func(pairs int) error {
		for pairs > 0 {
			slot, size := w.slots[at], w.sizes[at]
			if at++; at == len(w.slots) {
				at = 0
			}
			if held[slot] {
				if err := a.free(blocks[slot]); err != nil {
					return fmt.Errorf("freeing slot %d: %w", slot, err)
				}
			}
			if held[slot] = size > 0; !held[slot] {
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
func (a naiveAllocator) free(e extent) error { //nolint:unparam // Others can fail.
	a.naive.release(e)
	return nil
}

// coreAllocator is a placement core whose segments lie nowhere.
type coreAllocator struct{ core *alloc.Core }

func (a coreAllocator) alloc(bytes int64) (alloc.Block, error) {
	block, growth, err := a.core.Alloc(bytes, 0)
	for err == nil && growth.Bytes != 0 {
		if _, err = a.core.AddSegment(growth, a.nextAddress()); err == nil {
			block, growth, err = a.core.Alloc(bytes, 0)
		}
	}
	return block, err
}

func (a coreAllocator) free(b alloc.Block) error {
	_, err := a.core.Free(b)
	return err
}

// nextAddress is behind all segments so far.
func (a coreAllocator) nextAddress() uint64 {
	end := uint64(1) << 32
	for s := range a.core.Segments() {
		end = max(end, s.Address+uint64(s.Bytes))
	}
	return end
}
