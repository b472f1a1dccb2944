package bench

import (
	"context"
	"fmt"
	"slices"

	"symmem"
	"symmem/bench/report"
	"symmem/internal/tuning"
)

// tuner measures the paths of one operation after the other.
type tuner struct {
	*Tune
	// in has buffers of a pool, which are registered, and out others; it is nil where no call can go
	// direct, which is what it is for.
	in, out *lane
	// base is the table that it begins with, and reused reports whether some times of it are in rules
	// again.
	base   *tuning.Table
	reused bool
	found  Tuned
}

// prepare opens what all measurements share.
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
	t.found = Tuned{Device: rt.Device().Name, Ranks: rt.Size()}
	if t.base.Device != t.found.Device || t.base.Library != rt.Library() ||
		t.base.DataType != t.DataType.String() {
		t.base = t.base.WithoutTimes() // they do not compare with the new ones
	}
	return nil
}

// run measures all operations and makes their rules.
func (t *tuner) run(ctx context.Context) error {
	for i := range t.Operations {
		op := &t.Operations[i]
		found, err := t.measure(ctx, op)
		if err != nil {
			return fmt.Errorf("tuning %s: %w", op.Name, err)
		}
		fresh := t.rules(op, found)
		if len(fresh) == 0 {
			t.found.Skipped = append(t.found.Skipped, skipped(op, t.DataType))
		}
		t.found.Rules = append(t.found.Rules, fresh...)
	}
	return nil
}

// rules derives the rules of an operation from new times, joined with those of the base of other
// sizes. A choice that was not measured gets no rule.
func (t *tuner) rules(op *Operation, found *points) (rules []tuning.Rule) {
	rt := t.in.rt
	info := rt.Device()
	otherwise := tuning.Builtin(info.Backend, info.Name).Otherwise
	for _, measured := range []struct {
		memory tuning.Memory
		points []tuning.Point
	}{{"", found.windows}, {tuning.Symmetric, found.direct}, {tuning.Anywhere, found.anywhere}} {
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

// describe puts the new rules into the base.
func (t *tuner) describe() *tuning.Table {
	how := "calls one by one"
	if t.GraphOps > 0 {
		how = fmt.Sprintf("replays of graphs of up to %d calls", t.GraphOps)
	}
	rt, rules := t.in.rt, t.found.Rules
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
// window path, direct the direct path with the better of them, and anywhere the direct with the
// plain path on buffers in no window.
type points struct{ windows, direct, anywhere []tuning.Point }

// outsideBytes is more than the exchange memory of any group holds, through which calls on buffers
// in no window go direct.
const outsideBytes = 64 << 20

// outside is a lane with buffers in no window, or nil where nothing goes direct: not even barriers.
func (l *lane) outside(ctx context.Context, o *Collective) (*lane, error) {
	if err := l.take(ctx, symmem.PathDirect); err != nil {
		return nil, err
	}
	none := symmem.Memory{}
	e, err := l.rt.World().Explain(symmem.OpBarrier, none, none, 0, o.DataType)
	if err != nil || e.Path != symmem.PathDirect.String() {
		return nil, err
	}
	return l.apart(ctx, o, o.room(min(slices.Max(o.Sizes), outsideBytes), l.rt.Size()))
}

// measure takes the times of one operation, out of place, and in place if it has that half.
func (t *tuner) measure(ctx context.Context, op *Operation) (*points, error) {
	found, last := &points{}, int64(0)
	if !op.buffered() {
		return found, nil
	}
	for _, size := range t.Sizes {
		row := &Row{Operation: op, Ranks: t.in.rt.Size()}
		row.Count, row.Bytes = op.sized(size, row.Ranks, t.DataType)
		if row.Bytes <= last {
			continue
		}
		last = row.Bytes
		for _, inPlace := range []bool{false, true} {
			if inPlace && !op.inPlace {
				continue
			}
			all, err := t.ways(ctx, row, inPlace)
			if err != nil {
				return nil, err
			}
			if len(all) == 1 {
				continue
			}
			t.tell("%s of %v %v %s", op.Name, tuning.Size(row.Bytes), t.DataType, half(inPlace))
			perOp, err := t.times(ctx, row, inPlace, all)
			if err != nil {
				return nil, err
			}
			found.add(row.Bytes, inPlace, batches{
				plain:    perOp[way{t.in, symmem.PathPlain}],
				window:   perOp[way{t.in, symmem.PathWindow}],
				direct:   perOp[way{t.in, symmem.PathDirect}],
				anywhere: perOp[way{t.out, symmem.PathDirect}],
			})
		}
	}
	return found, nil
}

// half names the calls that were measured.
func half(inPlace bool) string {
	if inPlace {
		return "in place"
	}
	return "out of place"
}

// ways are those that a call can go. The first is the plain path.
func (t *tuner) ways(ctx context.Context, row *Row, inPlace bool) (all []way, err error) {
	paths, err := t.in.paths(ctx, &t.Collective, row, inPlace)
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		all = append(all, way{t.in, path})
	}
	// Buffers that are not symmetric may be in place on one rank alone.
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

// batches are those of all ways at one size: the paths on symmetric buffers, and the direct one on
// others. A way that was not measured has none.
type batches struct{ plain, window, direct, anywhere []float64 }

// add adds the batches of one size to the choices that they decide.
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

// newPoint condenses the batches of paths, in nanoseconds, turn by turn: of the plain and the
// window path, or of the direct one and those of the other two that were measured. The noise is
// that of the ratio which decides.
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

// microseconds is the median of batches for a table, 0 for none.
func microseconds(perOp []float64) float64 {
	if perOp == nil {
		return 0
	}
	return max(rounded(report.Summarize(perOp).Median/1e3, 1e3), 1e-3)
}
