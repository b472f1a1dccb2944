package bench

import (
	"context"
	"fmt"

	"symmem"
	"symmem/bench/report"
	"symmem/internal/tuning"
)

// tuner measures the paths of one operation after the other.
type tuner struct {
	*Tune
	// in has registered buffers of a pool, and out has other buffers, to measure the direct path.
	// out is nil if no call can take the direct path.
	in, out *world
	// base is the table to begin with; reused is set if new rules contain some of its times.
	base   *tuning.Table
	reused bool
	tuned  Tuned
}

// prepare opens the resources that all measurements share.
func (t *tuner) prepare(ctx context.Context) (err error) {
	if err := t.in.withoutGraphs(&t.Collective); err != nil {
		return err
	}
	if t.out, err = t.in.outside(ctx, &t.Collective); err != nil {
		return err
	}
	if t.base, err = t.shared(ctx, t.in); err != nil {
		return err
	}
	rt := t.in.rt
	t.tuned = Tuned{Device: rt.Device().Name, Ranks: rt.Size()}
	if t.base.Device != t.tuned.Device || t.base.Library != rt.Library() ||
		t.base.DataType != t.DataType.String() {
		t.base = t.base.WithoutTimes() // not comparable with the new ones
	}
	return nil
}

// run measures all operations and derives their rules.
func (t *tuner) run(ctx context.Context) error {
	for i := range t.Operations {
		op := &t.Operations[i]
		times, err := t.measure(ctx, op)
		if err != nil {
			return fmt.Errorf("tuning %s: %w", op.Name, err)
		}
		fresh := t.rules(op, times)
		if len(fresh) == 0 {
			t.tuned.Skipped = append(t.tuned.Skipped, skipped(op, t.DataType))
		}
		t.tuned.Rules = append(t.tuned.Rules, fresh...)
	}
	return nil
}

// rules derives the rules of an operation from new times, merged with those of the base for other
// sizes. A choice without measurements gets no rule.
func (t *tuner) rules(op *Operation, times *points) (rules []tuning.Rule) {
	rt := t.in.rt
	info := rt.Device()
	otherwise := tuning.Builtin(info.Backend, info.Name).Otherwise
	for _, measured := range []struct {
		memory tuning.Memory
		points []tuning.Point
	}{{"", times.windows}, {tuning.Symmetric, times.direct}, {tuning.Anywhere, times.anywhere}} {
		if len(measured.points) == 0 {
			continue
		}
		about := tuning.Calls{
			Operation: op.kind.String(), Memory: measured.memory, Shape: tuning.Shape{
				Ranks: rt.Size(), Machines: rt.World().Stats().Tuning.Machines,
			},
		}
		all := around(t.base.Measured(about), measured.points)
		t.reused = t.reused || len(all) > len(measured.points)
		rules = append(rules, tuning.Derive(about, otherwise, all))
	}
	return rules
}

// describe adds the new rules to the base.
func (t *tuner) describe() *tuning.Table {
	how := "calls one by one"
	if t.GraphOps > 0 {
		how = fmt.Sprintf("replays of graphs of up to %d calls", t.GraphOps)
	}
	rt, rules := t.in.rt, t.tuned.Rules
	table := t.base.Replace(rules...)
	table.Device, table.Library, table.Date = rt.Device().Name, rt.Library(), t.Date
	table.DataType = t.DataType.String()
	table.Source = fmt.Sprintf("symmem tune: %d batches of %v on each path in turns, %v, %s, medians "+
		"of the slowest rank; %s; %s", t.Plan.Batches, t.Plan.Batch, t.DataType, how,
		tuning.RuleOfDerive, RuleOfNoise)
	if t.reused || len(table.Rules) > len(rules)+len(table.General()) {
		table.Source += "; rules of other operations and ranks, and times of other sizes, were there " +
			"before"
	}
	return table
}

// points holds the times of one operation at ascending sizes: windows compares the plain and the
// window path, direct compares the direct path with the better of them, and anywhere compares the
// direct with the plain path on buffers outside of windows.
type points struct{ windows, direct, anywhere []tuning.Point }

// outsideBytes exceeds any group's exchange memory, which calls on buffers outside of windows need
// for the direct path.
const outsideBytes = 64 << 20

// measure measures one operation out of place and, if it supports that, in place.
func (t *tuner) measure(ctx context.Context, op *Operation) (*points, error) {
	times, last := &points{}, int64(0)
	if !op.buffered() {
		return times, nil
	}
	for _, size := range t.Sizes {
		row := &Row{Operation: op, Ranks: t.in.rt.Size()}
		row.Count, row.Bytes = op.sized(size, row.Ranks, t.DataType)
		if row.Bytes <= last {
			continue
		}
		last = row.Bytes
		for _, inPlace := range []bool{false, true} {
			if inPlace && !op.kind.HasInPlace() {
				continue
			}
			all, err := t.ways(ctx, row, inPlace)
			if err != nil {
				return nil, err
			}
			if len(all) == 1 {
				continue
			}
			t.report("%s of %v %v %s", op.Name, tuning.Size(row.Bytes), t.DataType, half(inPlace))
			perOp, err := t.times(ctx, row, inPlace, all)
			if err != nil {
				return nil, err
			}
			times.add(row.Bytes, inPlace, batches{
				plain:    perOp[way{t.in, symmem.PathPlain}],
				window:   perOp[way{t.in, symmem.PathWindow}],
				direct:   perOp[way{t.in, symmem.PathDirect}],
				anywhere: perOp[way{t.out, symmem.PathDirect}],
			})
		}
	}
	return times, nil
}

// half names the half of a measurement.
func half(inPlace bool) string {
	if inPlace {
		return "in place"
	}
	return "out of place"
}

// ways lists the ways of making a call. The first is the plain path.
func (t *tuner) ways(ctx context.Context, row *Row, inPlace bool) (all []way, err error) {
	paths, err := t.in.paths(ctx, &t.Collective, row, inPlace)
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		all = append(all, way{t.in, path})
	}
	// Unsymmetric buffers may be in place on a single rank.
	if t.out == nil || inPlace || row.Bytes > outsideBytes {
		return all, nil
	}
	why, err := t.out.refusal(ctx, &t.Collective, row, inPlace, symmem.PathDirect)
	if err == nil && why == "" {
		all = append(all, way{t.out, symmem.PathDirect})
	}
	return all, err
}

// times measures all ways at one size, and returns their batches.
func (t *tuner) times(
	ctx context.Context, row *Row, inPlace bool, all []way,
) (map[way][]float64, error) {
	runners, err := t.race(ctx, row, inPlace, all)
	if err != nil {
		return nil, err
	}
	perOp := map[way][]float64{}
	for i, r := range runners {
		if r.wrongs > 0 {
			return nil, fmt.Errorf("%d elements of %d bytes are wrong on the %v path, in place %t",
				r.wrongs, row.Bytes, r.choice, inPlace)
		}
		perOp[all[i]] = r.perOp
	}
	return perOp, nil
}

// batches holds the batches of all ways at one size: the paths on symmetric buffers, and the
// direct path on others. Ways that were not measured have none.
type batches struct{ plain, window, direct, anywhere []float64 }

// add adds the batches of one size to the comparisons that use them.
func (p *points) add(bytes int64, inPlace bool, b batches) {
	note := func(to *[]tuning.Point, window, direct []float64) {
		point := newPoint(bytes, b.plain, window, direct)
		point.InPlace = inPlace
		*to = append(*to, point)
	}
	if b.window != nil {
		note(&p.windows, b.window, nil)
	}
	if b.direct != nil {
		note(&p.direct, b.window, b.direct)
	}
	if b.anywhere != nil {
		note(&p.anywhere, nil, b.anywhere)
	}
}

// newPoint condenses the batches of paths, in nanoseconds, pairwise: of the plain and the window
// path, or of the direct path and those of the other two that were measured. The noise is that of
// the deciding ratio.
func newPoint(bytes int64, plain, window, direct []float64) tuning.Point {
	p := tuning.Point{
		Bytes: tuning.Size(bytes), PlainUS: microseconds(plain), WindowUS: microseconds(window),
		DirectUS: microseconds(direct),
	}
	over, under := plain, window
	if direct != nil {
		if under = direct; window != nil && p.WindowUS < p.PlainUS {
			over = window
		}
	}
	p.NoisePercent = rounded(noise(ratios(over, under)), 10)
	return p
}

// microseconds returns the median of batches in microseconds, 0 for none.
func microseconds(perOp []float64) float64 {
	if perOp == nil {
		return 0
	}
	return max(rounded(report.Summarize(perOp).Median/1e3, 1e3), 1e-3)
}
