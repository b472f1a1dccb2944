package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"symmem"
)

// RegisterSizes say what bench register covers.
type RegisterSizes struct {
	// There are numbers of segments that are registered already; the first is the baseline.
	There []int
	// New are numbers of segments that one registration adds.
	New []int
	// Ranks is the number of ranks, all in this process.
	Ranks int
}

// Register measures what the registration of new segments costs, given how many there are already:
// from the call to its return, on the slowest rank. The baseline is the first number there, so a
// ratio of 1 says that cost does not grow.
func Register(ctx context.Context, p Plan, sizes RegisterSizes) (*Report, error) {
	report := NewReport("register")
	worlds := make([]*registering, len(sizes.There))
	for i, there := range sizes.There {
		w, err := newRegistering(ctx, p, sizes.Ranks, there)
		if err != nil {
			return report, errors.Join(fmt.Errorf("registering %d segments: %w", there, err),
				closeAll(worlds))
		}
		worlds[i] = w
	}
	for _, fresh := range sizes.New {
		if err := registerNew(ctx, p, worlds, fresh, report); err != nil {
			return report, errors.Join(fmt.Errorf("registering %d new segments: %w", fresh, err),
				closeAll(worlds))
		}
	}
	return report, closeAll(worlds)
}

// registerNew measures one number of new segments, the worlds in turns.
func registerNew(
	ctx context.Context, p Plan, worlds []*registering, fresh int, report *Report,
) error {
	took := make([][]float64, len(worlds))
	for range p.Batches + 1 {
		for i, w := range worlds {
			ns, err := w.once(ctx, fresh)
			if err != nil {
				return err
			}
			took[i] = append(took[i], ns)
		}
	}
	for i, w := range worlds {
		// The first round warms up.
		r := Result{
			Name:    "register",
			Params:  map[string]any{"new": fresh, "there": w.there, "ranks": len(w.runtimes)},
			Summary: Summarize(took[i][1:]),
			Counts:  map[string]float64{"us/segment": 0},
		}
		r.Counts["us/segment"] = r.Median / 1e3 / float64(fresh)
		if i > 0 {
			base := fmt.Sprintf("with %d there", worlds[0].there)
			r.against(base, Summarize(took[0][1:]))
		}
		report.Results = append(report.Results, r)
	}
	return nil
}

// registering is a world of ranks that have a number of segments registered.
type registering struct {
	there    int
	runtimes []*symmem.Runtime
	pools    []*grown
}

func newRegistering(ctx context.Context, p Plan, ranks, there int) (*registering, error) {
	runtimes, err := symmem.OpenLocal(ctx, ranks, p.options())
	if err != nil {
		return nil, err
	}
	w := &registering{there: there, runtimes: runtimes, pools: make([]*grown, ranks)}
	err = w.each(func(i int, rt *symmem.Runtime) (err error) {
		if w.pools[i], err = newGrown(ctx, rt, 1); err != nil {
			return err
		}
		return w.pools[i].grow(ctx, there)
	})
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// each runs a function on all ranks.
func (w *registering) each(f func(int, *symmem.Runtime) error) error {
	errs := make([]error, len(w.runtimes))
	together(w.runtimes, func(i int, rt *symmem.Runtime) { errs[i] = f(i, rt) })
	return errors.Join(errs...)
}

// once adds segments, times their registration, and gives them back.
func (w *registering) once(ctx context.Context, fresh int) (float64, error) {
	took := make([]time.Duration, len(w.runtimes))
	err := w.each(func(i int, rt *symmem.Runtime) error {
		g := w.pools[i]
		if err := g.allocate(w.there + fresh); err != nil {
			return err
		}
		if err := meet(ctx, rt); err != nil {
			return err
		}
		begin := time.Now()
		if err := g.pool.Register(ctx, rt.World()); err != nil {
			return err
		}
		took[i] = time.Since(begin)
		return g.shrink(ctx, w.there)
	})
	longest := time.Duration(0)
	for _, d := range took {
		longest = max(longest, d)
	}
	return float64(longest.Nanoseconds()), err
}

// shrink frees and trims the newest segments until so many are left.
func (g *grown) shrink(ctx context.Context, segments int) error {
	for len(g.blocks) > 2*segments {
		last := len(g.blocks) - 1
		if err := g.blocks[last].Free(); err != nil {
			return err
		}
		g.blocks = g.blocks[:last]
	}
	return g.pool.Trim(ctx, int64(segments)*2*halfSegment)
}

// meet returns when all ranks have called it and their work is done.
func meet(ctx context.Context, rt *symmem.Runtime) error {
	if err := rt.World().Barrier(ctx, nil); err != nil {
		return err
	}
	return rt.DefaultStream().Synchronize(ctx)
}

func (w *registering) close() error {
	return w.each(func(_ int, rt *symmem.Runtime) error { return rt.Close() })
}

func closeAll(worlds []*registering) error {
	var errs []error
	for _, w := range worlds {
		if w != nil {
			errs = append(errs, w.close())
		}
	}
	return errors.Join(errs...)
}
