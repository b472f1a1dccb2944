package workload

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"symmem"
)

// Noise makes allocations that are unrelated to the test and differ between ranks.
type Noise struct {
	pool   *symmem.Pool
	random *rand.Rand
	live   []symmem.Buffer
}

const (
	maxNoiseBlocks     = 16
	maxNoiseBlockBytes = 3 << 20
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

// Step allocates or frees up to three blocks.
func (n *Noise) Step() error {
	if n == nil {
		return nil
	}

	for range n.random.IntN(4) {
		if err := n.allocOrFree(); err != nil {
			return fmt.Errorf("allocating memory for skew: %w", err)
		}
	}

	return nil
}

func (n *Noise) allocOrFree() error {
	if len(n.live) < maxNoiseBlocks && n.random.IntN(2) == 0 {
		b, err := n.pool.Alloc(1 + n.random.Int64N(maxNoiseBlockBytes))
		n.live = append(n.live, b)
		return err
	}

	if len(n.live) == 0 {
		return nil
	}

	index := n.random.IntN(len(n.live))
	b := n.live[index]
	n.live[index] = n.live[len(n.live)-1]
	n.live = n.live[:len(n.live)-1]
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
