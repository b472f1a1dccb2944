package random

import (
	"math"
	"math/rand/v2"
)

// choices makes the random choices of a round, which are the same on all ranks.
type choices struct {
	*rand.Rand
	maxBytes int64 // maximum message size
}

func newChoices(c *Config, round int) *choices {
	return &choices{rand.New(rand.NewPCG(c.Seed, uint64(round))), c.MaxBytes}
}

func choose[T any](d *choices, options []T) T { return options[d.IntN(len(options))] }

// isOneIn returns true with a probability of 1/n.
func (d *choices) isOneIn(n int) bool { return d.IntN(n) == 0 }

func (d *choices) drawSize() int64 {
	shortest, longest := math.Log(minMessage), math.Log(float64(d.maxBytes))
	return int64(math.Exp(shortest + d.Float64()*(longest-shortest)))
}
