package workload

import (
	"context"
	"errors"
	"time"

	"symmem"
)

// Config holds the options of all programs. It must be the same on all ranks.
type Config struct {
	// Seed is the seed of all random draws.
	Seed uint64
	// Placement is the order of equally large free blocks.
	Placement symmem.Placement
	// Skew makes each rank allocate unrelated memory between the steps, at random, and lets
	// segments land at different addresses on each rank, as under a GPU driver.
	Skew bool
	// Backend, Check and Timeout are those of symmem.Options.
	Backend string
	Check   symmem.CheckLevel
	Timeout time.Duration
}

// Default returns the automatic backend with a timeout of half a minute.
func Default() Config {
	return Config{Seed: 1, Backend: "auto", Timeout: 30 * time.Second}
}

// Options returns the options with which a rank opens its Runtime.
func (c *Config) Options() symmem.Options {
	o := symmem.Options{Backend: c.Backend, Check: c.Check, Timeout: c.Timeout}
	if c.Skew {
		// Zero would disable scattering.
		o.Scatter = c.Seed<<1 | 1
	}
	return o
}

// FirstSegment is the size of the first segments of pools in bytes. It is small, so that a pool
// soon has several segments.
const FirstSegment = 2 << 20

// Spread maps 32 parts, in bytes, in six segments that are all registered with a group and free.
// The first ones are small, so that blocks of one size soon lie in several segments. With
// placement by address ranks then use blocks of different segments. Without Spread a rank that
// maps a segment while others do not would only get an error when registering, but placement by
// address is meant to show wrong sums.
func Spread(ctx context.Context, p *symmem.Pool, g *symmem.Group, part int64) error {
	var parts []symmem.Buffer
	for _, n := range []int64{1, 1, 2, 4, 8, 16} {
		b, err := p.Alloc(n * part)
		if err != nil {
			return err
		}
		parts = append(parts, b)
	}
	errs := []error{p.Register(ctx, g)}
	for _, b := range parts {
		errs = append(errs, b.Free())
	}
	return errors.Join(errs...)
}

// Abort ends the groups that have not failed, so that no rank waits for this one. Groups without
// this rank are nil.
func Abort(groups ...*symmem.Group) {
	for _, g := range groups {
		if g != nil && g.Cause(context.Background()) == nil {
			g.Abort()
		}
	}
}
