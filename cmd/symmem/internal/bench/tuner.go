package bench

import (
	"context"
	"fmt"
	"slices"

	"symmem"
	"symmem/bench/report"
	"symmem/internal/tuning"
)

// tuner measures the paths of one operation after the other, on elements of one type after the
// other.
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

// prepare makes ready what is alike for all types.
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
	t.found = Tuned{DataType: t.DataTypes[0], Device: rt.Device().Name, Ranks: rt.Size()}
	if t.base.Device != t.found.Device || t.base.Library != rt.Library() {
		t.base = t.base.WithoutTimes() // which say nothing here
	}
	return nil
}

// run measures all operations on elements of one type, and makes their rules.
func (t *tuner) run(ctx context.Context, dataType symmem.DataType) error {
	t.DataType = dataType
	for i := range t.Operations {
		op := &t.Operations[i]
		found, err := t.measure(ctx, op)
		if err != nil {
			return fmt.Errorf("tuning %s: %w", op.Name, err)
		}
		fresh := t.rules(op, found)
		if len(fresh) == 0 && (op.buffered() || dataType == t.found.DataType) {
			t.found.Skipped = append(t.found.Skipped, skipped(op, dataType))
		}
		t.found.Rules = append(t.found.Rules, fresh...)
	}
	return nil
}

// rules derives the rules of an operation from new times, and from those of the base of other
// sizes. What the measurement does not decide stays as the built-in table has it.
func (t *tuner) rules(op *Operation, found *points) []tuning.Rule {
	rt, dataType := t.in.rt, t.DataType.String()
	about := tuning.Rule{Calls: tuning.Calls{
		Operation: op.kind.String(), DataType: dataType, Shape: tuning.Shape{
			Ranks: rt.Size(), Machines: rt.World().Stats().Tuning.Machines,
		},
	}}
	if t.DataType == t.found.DataType {
		about.DataType, about.MeasuredType = "", dataType
	}
	all := func(m tuning.Memory, fresh [2][]tuning.Point) [2][]tuning.Point {
		about.Memory = m
		with := around(t.base.Measured(about, dataType), fresh)
		t.reused = t.reused || len(with[0])+len(with[1]) > len(fresh[0])+len(fresh[1])
		return with
	}
	w, d := all("", found.windows), all(tuning.Symmetric, found.direct)
	anywhere := all(tuning.Anywhere, [2][]tuning.Point{found.anywhere})
	info := rt.Device()
	return slices.Concat(
		tuning.DeriveRules(tuning.Builtin(info.Backend, info.Name).Otherwise, about, w[0], w[1]),
		tuning.DeriveDirect(about, tuning.Symmetric, d[0], d[1]),
		tuning.DeriveDirect(about, tuning.Anywhere, anywhere[0], nil))
}

// describe puts the new rules into the base. Rules that the base has about the type which decides
// for all others would hide the new ones.
func (t *tuner) describe() *tuning.Table {
	how := "calls one by one"
	if t.GraphOps > 0 {
		how = fmt.Sprintf("replays of graphs of up to %d calls", t.GraphOps)
	}
	rt, rules := t.in.rt, t.found.Rules
	table := t.base.Without(t.found.DataType.String(), rules).Replace(rules...)
	table.Device, table.Library, table.Date = rt.Device().Name, rt.Library(), t.Date
	table.Source = fmt.Sprintf("symmem tune: %d batches of %v on each path in turns, %s, %s, medians "+
		"of the slowest rank; %s; %s", t.Plan.Batches, t.Plan.Batch, t.types(), how,
		tuning.RuleOfDerive, RuleOfNoise)
	if t.reused || len(table.Rules) > len(rules)+len(table.General()) {
		table.Source += "; rules of other operations, types and ranks, and times of other sizes, were " +
			"there before"
	}
	return table
}

// points are the times of one operation at all sizes, by what they decide.
type points struct {
	// windows compare the plain and the window path, direct the direct path with the better of them,
	// out of place and in place.
	windows, direct [2][]tuning.Point
	// anywhere compares the direct path with the plain one on buffers in no window.
	anywhere []tuning.Point
}

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
		for i := range found.windows {
			if i == 1 && !op.inPlace {
				continue
			}
			all, err := t.ways(ctx, row, i == 1)
			if err != nil {
				return nil, err
			}
			if len(all) == 1 {
				continue
			}
			t.tell("%s of %v %v %s", op.Name, tuning.Size(row.Bytes), t.DataType, half(i == 1))
			perOp, err := t.times(ctx, row, i == 1, all)
			if err != nil {
				return nil, err
			}
			found.add(row.Bytes, i, batches{
				plain:    perOp[way{t.in, symmem.PathPlain}],
				window:   perOp[way{t.in, symmem.PathWindow}],
				direct:   perOp[way{t.in, symmem.PathDirect}],
				anywhere: perOp[way{t.out, symmem.PathDirect}],
			})
		}
	}
	return found, nil
}

// half names a half of the calls of an operation.
func half(inPlace bool) tuning.Half {
	if inPlace {
		return tuning.InPlace
	}
	return tuning.OutOfPlace
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
	// In place is a matter of each rank alone where buffers are not symmetric, so nothing goes by it.
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

// add notes what the batches of a size decide.
func (p *points) add(bytes int64, half int, b batches) {
	if b.window != nil {
		p.windows[half] = append(p.windows[half], newPoint(bytes, b.plain, b.window, nil))
	}
	if b.direct != nil {
		p.direct[half] = append(p.direct[half], newPoint(bytes, b.plain, b.window, b.direct))
	}
	if b.anywhere != nil {
		p.anywhere = append(p.anywhere, newPoint(bytes, b.plain, nil, b.anywhere))
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
