package bench

import (
	"context"
	"errors"
	"fmt"

	"symmem"
	"symmem/internal/tuning"
)

// tuner measures the paths of one operation after the other, on elements of one type after the
// other.
type tuner struct {
	*Tune
	*Tuned
	// base is the table that it begins with.
	base *tuning.Table
	// named is the type that is measured, in rules about it alone.
	named string
	c     *Collective
	// in has buffers of a pool, which are registered, and out others; it is nil where no call can go
	// direct, which is what it is for.
	in, out *lane
}

// run measures all operations on elements of one type.
func (t *tuner) run(ctx context.Context, c *Collective) (err error) {
	l, err := openLane(ctx, c, 0)
	if err != nil {
		return fmt.Errorf("opening the world: %w", err)
	}
	defer func() { err = errors.Join(err, l.rt.Close()) }()
	if err := l.withoutGraphs(c); err != nil {
		return err
	}
	t.c, t.in = c, l
	if t.out, err = l.outside(ctx, c); err != nil {
		return err
	}
	if t.base == nil {
		if t.base, err = t.Tune.base(ctx, l); err != nil {
			return err
		}
	}
	if err := t.all(ctx); err != nil {
		return err
	}
	t.Device, t.Ranks = l.rt.Device().Name, l.rt.Size()
	t.Table = t.describe(l.rt, t.base)
	return nil
}

// all measures all operations, and makes their rules.
func (t *tuner) all(ctx context.Context) error {
	for i := range t.c.Operations {
		op := &t.c.Operations[i]
		found, err := t.measure(ctx, op)
		if err != nil {
			return fmt.Errorf("tuning %s: %w", op.Name, err)
		}
		about := tuning.Rule{
			Operation: op.kind.String(), DataType: t.named, Shape: tuning.Shape{
				Ranks: t.in.rt.Size(), Machines: t.in.rt.World().Stats().Tuning.Machines,
			},
		}
		fresh := rules(t.in, t.base, about, found)
		if len(fresh) == 0 && t.named == "" {
			t.Skipped = append(t.Skipped, skipped(op))
		}
		t.Rules = append(t.Rules, fresh...)
	}
	return nil
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
	return l.apart(ctx, o, min(o.MaxBytes, outsideBytes)+int64(l.rt.Size()*o.DataType.Size()))
}

// measure takes the times of one operation, out of place, and in place if it has that half.
func (t *tuner) measure(ctx context.Context, op *Operation) (*points, error) {
	found, last := &points{}, int64(0)
	if !op.buffered() {
		return found, nil
	}
	for _, size := range t.c.Sizes() {
		row := &Row{Operation: op, Ranks: t.in.rt.Size()}
		row.Count, row.Bytes = op.sized(size, row.Ranks, t.c.DataType)
		if row.Bytes <= last {
			continue
		}
		last = row.Bytes
		for i := range found.windows {
			if i == 1 && !op.inPlace {
				continue
			}
			all, err := t.contenders(ctx, row, i == 1)
			if err != nil {
				return nil, err
			}
			if len(all) == 1 {
				continue
			}
			t.tell("%s of %v %v %s", op.Name, tuning.Size(row.Bytes), t.c.DataType, half(i == 1))
			perOp, err := t.play(ctx, row, i == 1, all)
			if err != nil {
				return nil, err
			}
			found.add(row.Bytes, i, perOp)
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

// contender is a way of making a call.
type contender struct {
	lane   *lane
	choice symmem.PathChoice
	kind   kind
}

// kind tells ways of making a call apart.
type kind int

// The ways: the paths on symmetric buffers, and the direct one on others.
const (
	onPlain kind = iota
	onWindow
	onDirect
	onDirectAnywhere
	kinds
)

// contenders are the ways that a call can go. The first is the plain path.
func (t *tuner) contenders(
	ctx context.Context, row *Row, inPlace bool,
) ([]contender, error) {
	all := []contender{{t.in, symmem.PathPlain, onPlain}}
	more := []contender{
		{t.in, symmem.PathWindow, onWindow}, {t.in, symmem.PathDirect, onDirect},
	}
	// In place is a matter of each rank alone where buffers are not symmetric, so nothing goes by it.
	if t.out != nil && !inPlace && row.Bytes <= outsideBytes {
		more = append(more, contender{t.out, symmem.PathDirect, onDirectAnywhere})
	}
	for _, c := range more {
		can, err := c.lane.can(ctx, t.c, row, inPlace, c.choice)
		if err != nil {
			return nil, err
		}
		if can {
			all = append(all, c)
		}
	}
	return all, nil
}

// play measures all ways at one size, and returns their batches.
func (t *tuner) play(
	ctx context.Context, row *Row, inPlace bool, all []contender,
) (perOp [kinds][]float64, err error) {
	var runners []*runner
	defer func() { err = errors.Join(err, forget(runners)) }()
	for _, c := range all {
		r, err := t.c.runner(ctx, c.lane, row, inPlace, c.choice)
		if err != nil {
			return perOp, err
		}
		runners = append(runners, r)
		if r.wrongs > 0 {
			return perOp, fmt.Errorf("%d elements of %d bytes are wrong on the %v path, in place %t",
				r.wrongs, row.Bytes, c.choice, inPlace)
		}
	}
	if err := t.c.play(ctx, runners, row.Operation); err != nil {
		return perOp, err
	}
	for i, c := range all {
		perOp[c.kind] = runners[i].perOp
	}
	return perOp, nil
}

// add notes what the batches of a size decide. A way that was not measured has none.
func (p *points) add(bytes int64, half int, perOp [kinds][]float64) {
	plain, window := perOp[onPlain], perOp[onWindow]
	if window != nil {
		p.windows[half] = append(p.windows[half], newPoint(bytes, plain, window, nil))
	}
	if direct := perOp[onDirect]; direct != nil {
		p.direct[half] = append(p.direct[half], newPoint(bytes, plain, window, direct))
	}
	if direct := perOp[onDirectAnywhere]; direct != nil {
		p.anywhere = append(p.anywhere, newPoint(bytes, plain, nil, direct))
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
	return max(rounded(Summarize(perOp).Median/1e3, 1e3), 1e-3)
}
