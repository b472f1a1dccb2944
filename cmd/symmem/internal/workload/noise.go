package workload

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"symmem"
)

// Noise makes allocations that are unrelated to the test and differ between ranks. Before a step of
// the test, rank 0 may allocate blocks of 1 and 2 MiB, while rank 1 frees a block. Real programs
// have such differences, too.
type Noise struct {
	pool   *symmem.Pool    // separate from the test's pools
	random *rand.Rand      // differs between ranks
	live   []symmem.Buffer // allocated blocks
}

const (
	maxNoiseBlocks     = 16 // live at the same time
	maxNoiseBlockBytes = 3 << 20
	maxNoiseChanges    = 3 // allocations and frees of a Step
)

// NewNoise returns this rank's Noise for a round, or nil if c.Skew is not set. Methods of a nil
// *Noise do nothing.
func NewNoise(rt *symmem.Runtime, c *Config, round int) (*Noise, error) {
	if !c.Skew {
		return nil, nil
	}

	pool, err := rt.NewPool(symmem.PoolOptions{FirstSegment: FirstSegment})
	if err != nil {
		return nil, fmt.Errorf("creating the pool for skew: %w", err)
	}

	seed := hash(uint64(round), uint64(rt.Rank())+1, c.Seed)
	return &Noise{pool: pool, random: rand.New(rand.NewPCG(seed, uint64(rt.Rank())))}, nil
}

// Step makes up to three random allocations and frees.
func (n *Noise) Step() error {
	if n == nil {
		return nil
	}

	changes := n.random.IntN(maxNoiseChanges + 1)
	for range changes {
		if err := n.allocOrFree(); err != nil {
			return fmt.Errorf("allocating memory for skew: %w", err)
		}
	}

	return nil
}

// allocOrFree allocates a block or frees one, with equal probability. It allocates none beyond the
// limit, and frees none if there are none.
func (n *Noise) allocOrFree() error {
	canAlloc := len(n.live) < maxNoiseBlocks
	if canAlloc && n.random.IntN(2) == 0 {
		return n.alloc()
	}

	if len(n.live) == 0 {
		return nil
	}

	return n.free(n.random.IntN(len(n.live)))
}

// alloc allocates a block of random size.
func (n *Noise) alloc() error {
	b, err := n.pool.Alloc(1 + n.random.Int64N(maxNoiseBlockBytes))
	n.live = append(n.live, b)
	return err
}

// free frees the live block at an index. The last block takes its place.
func (n *Noise) free(index int) error {
	b := n.live[index]
	last := len(n.live) - 1
	n.live[index] = n.live[last]
	n.live = n.live[:last]
	return b.Free()
}

// Close frees all blocks and closes the pool.
func (n *Noise) Close() error {
	if n == nil {
		return nil
	}

	var errs []error
	for _, b := range n.live {
		errs = append(errs, b.Free())
	}

	return errors.Join(append(errs, n.pool.Close())...)
}
