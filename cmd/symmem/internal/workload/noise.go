package workload

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"symmem"
)

// Noise makes random allocations that differ between ranks, in a separate pool. Step and Close do
// nothing on a nil *Noise, for runs without Config.Skew.
type Noise struct {
	pool   *symmem.Pool
	random *rand.Rand // draws other numbers on each rank
	live   []symmem.Buffer
}

const (
	maxLiveBlocks  = 16
	maxBlockBytes  = 3 << 20
	maxStepChanges = 3 // allocations and frees of a Step
)

// NewNoise returns this rank's Noise for a round, or nil if c.Skew is not set.
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

// Step makes up to maxStepChanges random allocations and frees.
func (n *Noise) Step() error {
	if n == nil {
		return nil
	}

	changes := n.random.IntN(maxStepChanges + 1)
	for range changes {
		if err := n.allocOrFree(); err != nil {
			return fmt.Errorf("allocating memory for skew: %w", err)
		}
	}

	return nil
}

// allocOrFree allocates or frees a block with equal probability. At maxLiveBlocks, it frees one.
func (n *Noise) allocOrFree() error {
	canAlloc := len(n.live) < maxLiveBlocks
	if canAlloc && n.random.IntN(2) == 0 {
		return n.alloc()
	}

	if len(n.live) == 0 {
		return nil
	}

	return n.free(n.random.IntN(len(n.live)))
}

func (n *Noise) alloc() error {
	b, err := n.pool.Alloc(1 + n.random.Int64N(maxBlockBytes))
	if err != nil {
		return err
	}

	n.live = append(n.live, b)
	return nil
}

// free frees n.live[index] and replaces it by the last block.
func (n *Noise) free(index int) error {
	b := n.live[index]
	last := len(n.live) - 1
	n.live[index] = n.live[last]
	n.live = n.live[:last]
	return b.Free()
}

// Close frees all blocks and the pool.
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
