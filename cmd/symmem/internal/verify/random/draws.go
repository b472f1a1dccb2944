package random

import (
	"math"
	"math/rand/v2"
)

// draws makes the random choices of a round, which are the same on all ranks.
type draws struct {
	*rand.Rand
	maxBytes int64 // maximum message size
}

func newDraws(c *Config, round int) *draws {
	return &draws{rand.New(rand.NewPCG(c.Seed, uint64(round))), c.MaxBytes}
}

func choose[T any](d *draws, options []T) T { return options[d.IntN(len(options))] }

// chance returns true with a probability of 1/n.
func (d *draws) chance(n int) bool { return d.IntN(n) == 0 }

// size draws a message size in bytes from a log-uniform distribution.
func (d *draws) size() int64 {
	shortest, longest := math.Log(minMessage), math.Log(float64(d.maxBytes))
	return int64(math.Exp(shortest + d.Float64()*(longest-shortest)))
}
