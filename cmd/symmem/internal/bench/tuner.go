package bench

import (
	"context"
	"fmt"

	"symmem"
	"symmem/bench/report"
	"symmem/internal/tuning"
)

// tuner measures the paths of operations, one operation at a time.
type tuner struct {
	*Tune
	// registered is the world whose buffers lie in windows. outside is the world whose buffers lie
	// outside windows; it is used to measure the direct path on such buffers, and is nil if no call
	// can take the direct path.
	registered, outside *world
	base                *tuning.Table // table to start from
	reused              bool          // set if new rules contain times of base
	tuned               Tuned
}

func (t *tuner) prepare(ctx context.Context) (err error) {
	if err := t.registered.withoutGraphs(&t.Collective); err != nil {
		return err
	}
	if t.outside, err = t.registered.openOutside(ctx, &t.Collective); err != nil {
		return err
	}
	if t.base, err = t.baseOfRank0(ctx, t.registered); err != nil {
		return err
	}
	rt := t.registered.rt
	t.tuned = Tuned{Device: rt.Device().Name, Ranks: rt.Size()}
	if t.base.Device != t.tuned.Device || t.base.Library != rt.Library() ||
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
			t.tuned.Skipped = append(t.tuned.Skipped, skipReason(op, t.DataType))
		}
		t.tuned.Rules = append(t.tuned.Rules, newRules...)
	}
	return nil
}

// rules derives the rules for an operation from the new times and from the base table's times for
// other sizes. It returns no rule for a kind of memory that has no new times.
func (t *tuner) rules(op *Operation, times *points) (rules []tuning.Rule) {
	rt := t.registered.rt
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
	if t.GraphOps > 0 {
		method = fmt.Sprintf("replays of graphs of up to %d calls", t.GraphOps)
	}
	rt, rules := t.registered.rt, t.tuned.Rules
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

// points holds the times of one operation in ascending order of size. windows compares the plain
// path with the window path. direct compares the faster of these two with the direct path, or with
// the two-level path in a group that has no direct path. anywhere compares the plain path with the
// direct path on buffers outside windows.
type points struct{ windows, direct, anywhere []tuning.Point }

// maxOutsideBytes is an upper bound on the size of calls that can take the direct path on buffers
// outside windows. The actual limit is the group's exchange memory, which is always smaller.
const maxOutsideBytes = 64 << 20

// measure measures an operation out of place and, if supported, in place.
func (t *tuner) measure(ctx context.Context, op *Operation) (*points, error) {
	times, last := &points{}, int64(0)
	if !op.hasBuffers() {
		return times, nil
	}
	for _, size := range t.Sizes {
		row := &Row{Operation: op, Ranks: t.registered.rt.Size()}
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
			perOp, err := t.times(ctx, row, inPlace, variants)
			if err != nil {
				return nil, err
			}
			times.add(row.Bytes, inPlace, batches{
				plain:    perOp[variant{t.registered, symmem.PathPlain}],
				window:   perOp[variant{t.registered, symmem.PathWindow}],
				direct:   perOp[variant{t.registered, symmem.PathDirect}],
				twoLevel: perOp[variant{t.registered, symmem.PathTwoLevel}],
				anywhere: perOp[variant{t.outside, symmem.PathDirect}],
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
	paths, err := t.registered.paths(ctx, &t.Collective, row, inPlace)
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		variants = append(variants, variant{t.registered, path})
	}
	// Outside windows, calls can be in place only in a group of one rank, which has nothing to tune.
	if t.outside == nil || inPlace || row.Bytes > maxOutsideBytes {
		return variants, nil
	}
	reason, err := t.outside.refusalReason(ctx, &t.Collective, row, inPlace, symmem.PathDirect)
	if err == nil && reason == "" {
		variants = append(variants, variant{t.outside, symmem.PathDirect})
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
	perOp := map[variant][]float64{}
	for i, r := range runners {
		if r.wrong > 0 {
			return nil, fmt.Errorf("%d elements are wrong in a call of %d bytes on the %v path "+
				"(in place: %t)", r.wrong, row.Bytes, r.choice, inPlace)
		}
		perOp[variants[i]] = r.perOp
	}
	return perOp, nil
}

// batches holds the times of all variants at one size. A field is nil if its variant was not
// measured. anywhere holds the times of the direct path on buffers outside windows. All other times
// were measured on symmetric buffers.
type batches struct{ plain, window, direct, twoLevel, anywhere []float64 }

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

// newPoint summarizes the times of the paths, which are in nanoseconds per call. If the direct path
// was measured, NoisePercent is the noise of the ratio of the faster of plain and window to direct;
// otherwise, it is the noise of the ratio of plain to window.
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

// microseconds converts the median of perOp from nanoseconds to microseconds. It returns 0 if perOp
// is nil.
func microseconds(perOp []float64) float64 {
	if perOp == nil {
		return 0
	}
	return max(roundTo(report.Summarize(perOp).Median/1e3, 1e3), 1e-3)
}
