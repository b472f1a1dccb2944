package bench

import (
	"context"
	"fmt"

	"symmem"
	"symmem/bench/report"
	"symmem/internal/tuning"
)

type tuner struct {
	*TuneOptions
	// The buffers of windowWorld are in windows, those of outsideWorld are not. outsideWorld is nil
	// if no call can take the direct path.
	windowWorld, outsideWorld *world
	base                      *tuning.Table // table to start from
	reused                    bool          // set if new rules contain times of base
	output                    TuneResult
}

func (t *tuner) prepare(ctx context.Context) (err error) {
	if err := t.windowWorld.disableUnsupportedGraphs(&t.CollectiveOptions); err != nil {
		return err
	}
	if t.outsideWorld, err = t.windowWorld.openOutside(ctx, &t.CollectiveOptions); err != nil {
		return err
	}
	if t.base, err = t.baseOfRank0(ctx, t.windowWorld); err != nil {
		return err
	}
	rt := t.windowWorld.rt
	t.output = TuneResult{Device: rt.Device().Name, Ranks: rt.Size()}
	if t.base.Device != t.output.Device || t.base.Library != rt.Library() ||
		t.base.DataType != t.DataType.String() {
		t.base = t.base.WithoutTimes() // the old times are not comparable with the new ones
	}
	return nil
}

func (t *tuner) run(ctx context.Context) error {
	for i := range t.Operations {
		op := &t.Operations[i]
		times, err := t.measure(ctx, op)
		if err != nil {
			return fmt.Errorf("tuning %s: %w", op.Name, err)
		}
		newRules := t.rules(op, times)
		if len(newRules) == 0 {
			t.output.Skipped = append(t.output.Skipped, skipReason(op, t.DataType))
		}
		t.output.Rules = append(t.output.Rules, newRules...)
	}
	return nil
}

// rules derives the rules for an operation from the new times, and from the times in the base table
// for other sizes. It returns no rule for a kind of memory without new times.
func (t *tuner) rules(op *Operation, times *points) (rules []tuning.Rule) {
	rt := t.windowWorld.rt
	info := rt.Device()
	otherwise := tuning.Builtin(info.Backend, info.Name).Otherwise
	for _, measured := range []struct {
		memory tuning.Memory
		points []tuning.Point
	}{{"", times.windows}, {tuning.Symmetric, times.direct}, {tuning.Anywhere, times.anywhere}} {
		if len(measured.points) == 0 {
			continue
		}
		calls := tuning.Calls{
			Operation: op.kind.String(), Memory: measured.memory, Shape: tuning.Shape{
				Ranks: rt.Size(), Machines: rt.World().Stats().Tuning.Machines,
			},
		}
		merged := mergePoints(t.base.Measured(calls), measured.points)
		t.reused = t.reused || len(merged) > len(measured.points)
		rules = append(rules, tuning.Derive(calls, otherwise, merged))
	}
	return rules
}

// describe returns the base table with the new rules and a description of the measurement.
func (t *tuner) describe() *tuning.Table {
	method := "calls one by one"
	if t.GraphCalls > 0 {
		method = fmt.Sprintf("replays of graphs of up to %d calls", t.GraphCalls)
	}
	rt, rules := t.windowWorld.rt, t.output.Rules
	table := t.base.Replace(rules...)
	table.Device, table.Library, table.Date = rt.Device().Name, rt.Library(), t.Date
	table.DataType = t.DataType.String()
	table.Source = fmt.Sprintf("symmem tune: %d batches of %v on each path, alternating, %v, %s, "+
		"medians of the slowest rank; %s; %s", t.Plan.Batches, t.Plan.Batch, t.DataType, method,
		tuning.DeriveMethod, NoiseMethod)
	if t.reused || len(table.Rules) > len(rules)+len(table.General()) {
		table.Source += "; rules for other operations and ranks, and times for other sizes, are from " +
			"the base table"
	}
	return table
}

// points holds the times of one operation in ascending order of size.
type points struct {
	windows []tuning.Point // the plain and the window path
	// direct compares the faster of these two with the direct path or, if the group has none, with
	// the two-level path.
	direct   []tuning.Point
	anywhere []tuning.Point // the plain and the direct path, on buffers outside windows
}

// maxOutsideBytes is larger than any call that can take the direct path on buffers outside windows.
const maxOutsideBytes = 64 << 20

func (t *tuner) measure(ctx context.Context, op *Operation) (*points, error) {
	times, last := &points{}, int64(0)
	if !op.hasRules() {
		return times, nil
	}
	for _, size := range t.Sizes {
		row := &Row{Operation: op, Ranks: t.windowWorld.rt.Size()}
		row.Count, row.Bytes = op.countAndSize(size, row.Ranks, t.DataType)
		if row.Bytes <= last {
			continue
		}
		last = row.Bytes
		for _, inPlace := range []bool{false, true} {
			if inPlace && !op.kind.HasInPlace() {
				continue
			}
			variants, err := t.variants(ctx, row, inPlace)
			if err != nil {
				return nil, err
			}
			if len(variants) == 1 {
				continue
			}
			t.report("%s of %v %v %s", op.Name, tuning.Size(row.Bytes), t.DataType, placement(inPlace))
			nsPerCall, err := t.times(ctx, row, inPlace, variants)
			if err != nil {
				return nil, err
			}
			times.add(row.Bytes, inPlace, batches{
				plain:    nsPerCall[variant{t.windowWorld, symmem.PathPlain}],
				window:   nsPerCall[variant{t.windowWorld, symmem.PathWindow}],
				direct:   nsPerCall[variant{t.windowWorld, symmem.PathDirect}],
				twoLevel: nsPerCall[variant{t.windowWorld, symmem.PathTwoLevel}],
				anywhere: nsPerCall[variant{t.outsideWorld, symmem.PathDirect}],
			})
		}
	}
	return times, nil
}

func placement(inPlace bool) string {
	if inPlace {
		return "in place"
	}
	return "out of place"
}

// variants returns the variants of a call. The first is the plain path.
func (t *tuner) variants(
	ctx context.Context, row *Row, inPlace bool,
) (variants []variant, err error) {
	paths, err := t.windowWorld.paths(ctx, &t.CollectiveOptions, row, inPlace)
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		variants = append(variants, variant{t.windowWorld, path})
	}
	// Outside windows, calls can be in place only in a group of one rank, which has nothing to
	// tune.
	if t.outsideWorld == nil || inPlace || row.Bytes > maxOutsideBytes {
		return variants, nil
	}
	reason, err := t.outsideWorld.refusalReason(
		ctx, &t.CollectiveOptions, row, inPlace, symmem.PathDirect)
	if err == nil && reason == "" {
		variants = append(variants, variant{t.outsideWorld, symmem.PathDirect})
	}
	return variants, err
}

func (t *tuner) times(
	ctx context.Context, row *Row, inPlace bool, variants []variant,
) (map[variant][]float64, error) {
	runners, err := t.measureAll(ctx, row, inPlace, variants)
	if err != nil {
		return nil, err
	}
	nsPerCall := map[variant][]float64{}
	for i, r := range runners {
		if r.wrong > 0 {
			return nil, fmt.Errorf("%d elements are wrong in a call of %d bytes on the %v path "+
				"(in place: %t)", r.wrong, row.Bytes, r.choice, inPlace)
		}
		nsPerCall[variants[i]] = r.nsPerCall
	}
	return nsPerCall, nil
}

// batches holds the times of all variants at one size. A field is nil if its variant was not
// measured.
type batches struct {
	plain, window, direct, twoLevel []float64 // on buffers in windows
	anywhere                        []float64 // on the direct path, on buffers outside windows
}

func (p *points) add(bytes int64, inPlace bool, b batches) {
	appendPoint := func(dst *[]tuning.Point, window, direct []float64) {
		point := newPoint(bytes, b.plain, window, direct)
		point.InPlace = inPlace
		*dst = append(*dst, point)
	}
	if b.window != nil {
		appendPoint(&p.windows, b.window, nil)
	}
	switch {
	case b.direct != nil:
		appendPoint(&p.direct, b.window, b.direct)
	case b.twoLevel != nil:
		appendPoint(&p.direct, b.window, b.twoLevel)
		point := &p.direct[len(p.direct)-1]
		point.DirectUS, point.TwoLevelUS = 0, point.DirectUS
	}
	if b.anywhere != nil {
		appendPoint(&p.anywhere, nil, b.anywhere)
	}
}

// newPoint summarizes the times of the paths, which are in nanoseconds per call. NoisePercent is
// the noise of the ratio between the direct path and the faster other path or, without times of the
// direct path, between plain and window.
func newPoint(bytes int64, plain, window, direct []float64) tuning.Point {
	p := tuning.Point{
		Bytes: tuning.Size(bytes), PlainUS: microseconds(plain), WindowUS: microseconds(window),
		DirectUS: microseconds(direct),
	}
	dividends, divisors := plain, window
	if direct != nil {
		if divisors = direct; window != nil && p.WindowUS < p.PlainUS {
			dividends = window
		}
	}
	p.NoisePercent = roundTo(noise(ratios(dividends, divisors)), 10)
	return p
}

// microseconds returns the median in microseconds, or 0 if nsPerCall is nil.
func microseconds(nsPerCall []float64) float64 {
	if nsPerCall == nil {
		return 0
	}
	return max(roundTo(report.Summarize(nsPerCall).Median/1e3, 1e3), 1e-3)
}
