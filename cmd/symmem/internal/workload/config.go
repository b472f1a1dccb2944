package workload

import (
	"context"
	"errors"
	"time"

	"symmem"
)

// Config holds the options that all workloads share. They must be the same on all ranks.
type Config struct {
	// Seed is the seed of all random draws.
	Seed uint64
	// Placement is the order in which free blocks of the same size are chosen.
	Placement symmem.Placement
	// Skew makes each rank allocate random amounts of unrelated memory between the steps, and places
	// segments at different addresses on each rank, as a GPU driver may do.
	Skew bool
	// Backend, Check and Timeout are fields of symmem.Options.
	Backend string
	Check   symmem.CheckLevel
	Timeout time.Duration
}

// Default returns a Config with the automatic backend and a timeout of 30 seconds.
func Default() Config {
	return Config{Seed: 1, Backend: "auto", Timeout: 30 * time.Second}
}

// Options returns the options with which a rank opens its Runtime.
func (c *Config) Options() symmem.Options {
	o := symmem.Options{Backend: c.Backend, Check: c.Check, Timeout: c.Timeout}
	if c.Skew {
		o.Scatter = c.Seed<<1 | 1 // not 0, which would disable scattering
	}
	return o
}

// FirstSegment is the size of a pool's first segment in bytes. It is small enough that pools soon
// have several segments.
const FirstSegment = 2 << 20

// Spread maps 32*part bytes in six segments, registers the segments with a group, and leaves them
// free. The first segments are small, so several segments soon have free blocks of the same size.
// With placement by address, the ranks then choose different blocks, which makes sums wrong.
// Without Spread, a rank could map a segment that other ranks do not map, and registering that
// segment would fail before any sum is wrong.
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

// Abort aborts the groups, so that other ranks do not wait for this rank. It ignores nil, and
// groups that have already failed.
func Abort(groups ...*symmem.Group) {
	for _, g := range groups {
		if g != nil && g.Cause(context.Background()) == nil {
			g.Abort()
		}
	}
}
