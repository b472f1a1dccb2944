package workload

import (
	"context"
	"errors"
	"time"

	"symmem"
)

// Config has the options of every program. Each rank needs the same.
type Config struct {
	// Seed is where all draws come from.
	Seed uint64
	// Placement is the order among equally large free blocks.
	Placement symmem.Placement
	// Skew makes each rank allocate memory of its own between the steps, at random, and lets
	// segments land at addresses of the rank's own, as under a GPU driver.
	Skew bool
	// Backend, Check and Timeout are those of symmem.Options.
	Backend string
	Check   symmem.CheckLevel
	Timeout time.Duration
}

// Default is the automatic backend with a patience of half a minute.
func Default() Config {
	return Config{Seed: 1, Backend: "auto", Timeout: 30 * time.Second}
}

// Options are what a rank opens its Runtime with.
func (c *Config) Options() symmem.Options {
	o := symmem.Options{Backend: c.Backend, Check: c.Check, Timeout: c.Timeout}
	if c.Skew {
		// Zero would turn scattering off.
		o.Scatter = c.Seed<<1 | 1
	}
	return o
}

// FirstSegment is the size of the first segments of pools in bytes: small, so that a pool has
// several segments early.
const FirstSegment = 2 << 20

// Spread maps 32 parts, in bytes, in six segments that are all registered with a group and free;
// the first are small, so that blocks of one size soon lie in several. With placement by
// address ranks then take blocks of different segments. A rank that mapped where others do not
// would only have its registration refused, but a placement by address is to show wrong sums.
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

// Abort ends the groups that have not failed, so that no rank waits for this one. A nil group is
// one that this rank is not in.
func Abort(groups ...*symmem.Group) {
	for _, g := range groups {
		if g != nil && g.Err() == nil {
			g.Abort()
		}
	}
}
