package bench

import (
	"context"
	"fmt"

	"symmem/internal/sim"
)

// ScaleSizes say what bench scale covers.
type ScaleSizes struct {
	// Ranks are sizes of clusters that agree on a history of so many Events.
	Ranks  []int
	Events int
	// Segments and Groups are those of pools that grow.
	Segments, Groups []int
}

// Scale runs agreements of whole clusters, and pools that grow under many groups, in one process
// over the same cores that real ranks run. Times are those of all ranks together on one processor;
// what a cluster would feel are rounds and hops. Counts are exact.
func Scale(ctx context.Context, p Plan, sizes ScaleSizes) (*Report, error) {
	report := NewReport("scale")
	history := sim.History(sizes.Events, 1)
	for _, ranks := range sizes.Ranks {
		agree := sim.Scenario{Ranks: ranks, History: history}
		differ := agree
		differ.Deviations = []sim.Deviation{{
			Ranks: []int{ranks / 2}, Position: sizes.Events * 7 / 10, Change: sim.Resize,
		}}
		for _, s := range []named{{"agree", agree}, {"first difference", differ}} {
			if err := ctx.Err(); err != nil {
				return report, err
			}
			if err := scaleOne(p, s, report); err != nil {
				return report, fmt.Errorf("simulating %d ranks: %w", ranks, err)
			}
		}
	}
	return report, growths(ctx, p, sizes, report)
}

// named is a scenario with what reports call it.
type named struct {
	name     string
	scenario sim.Scenario
}

func scaleOne(p Plan, n named, report *Report) error {
	s := n.scenario
	var last sim.Result
	results, err := p.Measure(Case{
		Name:   n.name,
		Params: map[string]any{"ranks": s.Ranks, "events": len(s.History)},
		Ours: Variant{Run: func(n int) (err error) {
			for range n {
				if last, err = sim.Agreement(s); err != nil {
					return err
				}
			}
			return nil
		}},
	})
	for i := range results {
		results[i].Counts = map[string]float64{
			"rounds": float64(last.Rounds), "messages": float64(last.Messages),
			"hops": float64(last.Depth), "largest": float64(last.Largest),
			"bytes/rank": float64(last.Bytes) / float64(s.Ranks),
		}
	}
	return report.Add(results, err)
}

func growths(ctx context.Context, p Plan, sizes ScaleSizes, report *Report) error {
	for _, segments := range sizes.Segments {
		for _, groups := range sizes.Groups {
			if err := ctx.Err(); err != nil {
				return err
			}
			g := sim.Growth{Segments: segments, Groups: groups, PerScope: min(10, segments)}
			if err := growthOne(p, g, report); err != nil {
				return fmt.Errorf("growing to %d segments: %w", segments, err)
			}
		}
	}
	return nil
}

// growthOne reports the time of one registration, which must not depend on how many there are.
func growthOne(p Plan, g sim.Growth, report *Report) error {
	var last sim.GrowthResult
	results, err := p.Measure(Case{
		Name:   "growth, a window",
		Params: map[string]any{"segments": g.Segments, "groups": g.Groups},
		Ours: Variant{Run: func(n int) (err error) {
			for range n {
				if last, err = sim.Grow(g); err != nil {
					return err
				}
			}
			return nil
		}},
	})
	for i := range results {
		windows := float64(last.Windows)
		results[i].Summary = results[i].dividedBy(windows)
		results[i].AllocsPerOp /= windows
		results[i].Counts = map[string]float64{
			"windows": windows, "scopes": float64(last.Scopes),
		}
	}
	return report.Add(results, err)
}
