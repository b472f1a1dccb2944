package workload

import (
	"context"
	"errors"
	"time"

	"symmem"
)

// Config holds the options that all workloads share. They must be the same on all ranks.
type Config struct {
	Seed      uint64
	Placement symmem.Placement // which of several free blocks of the same size is used
	// Skew makes ranks differ, as in real programs: each rank makes unrelated allocations, and its
	// segments are at different addresses.
	Skew bool
	// Backend, Check and Timeout are fields of symmem.Options.
	Backend string
	Check   symmem.CheckLevel
	Timeout time.Duration
}

// Default returns the default options.
func Default() Config {
	return Config{Seed: 1, Backend: "auto", Timeout: 30 * time.Second}
}

// Options returns the options with which a rank opens its Runtime.
func (c *Config) Options() symmem.Options {
	o := symmem.Options{Backend: c.Backend, Check: c.Check, Timeout: c.Timeout}
	if c.Skew {
		o.Scatter = c.Seed<<1 | 1 // must not be 0
	}

	return o
}

// FirstSegment is the size of a pool's first segment in bytes.
const FirstSegment = 2 << 20

// MapSegments maps six free segments of 32*part bytes in all, and registers them with a group. It
// is for programs with placement by address, which would otherwise fail before any sum is wrong.
func MapSegments(ctx context.Context, p *symmem.Pool, g *symmem.Group, part int64) error {
	var buffers []symmem.Buffer
	for _, parts := range []int64{1, 1, 2, 4, 8, 16} {
		b, err := p.Alloc(parts * part)
		if err != nil {
			return err
		}

		buffers = append(buffers, b)
	}

	errs := []error{p.Register(ctx, g)}
	for _, b := range buffers {
		errs = append(errs, b.Free())
	}

	return errors.Join(errs...)
}

// Abort aborts the groups, so that other ranks do not wait for this rank. It ignores nil.
func Abort(groups ...*symmem.Group) {
	for _, g := range groups {
		if g != nil && g.Cause(context.Background()) == nil {
			g.Abort()
		}
	}
}
