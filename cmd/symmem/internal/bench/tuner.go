package bench

import (
	"context"
	"fmt"

	"symmem"
	"symmem/bench/report"
	"symmem/internal/tuning"
)

// tuner measures calls on each path, and derives a tuning table from the times.
type tuner struct {
	*TuneOptions
	windowWorld  *world        // its buffers are in windows (memory registered on all ranks)
	outsideWorld *world        // its buffers are not in windows; nil without the direct path
	baseTable    *tuning.Table // table to start from
	hasBaseTimes bool          // whether new rules contain times of baseTable
	result       TuneResult
}

// prepare sets the fields other than windowWorld. It drops the times in the base table if they
// were measured with another device, library or data type.
func (t *tuner) prepare(ctx context.Context) (err error) {
	if err := t.windowWorld.disableUnsupportedGraphs(&t.CollectiveOptions); err != nil {
		return err
	}

	if t.outsideWorld, err = t.windowWorld.newOutsideWorld(ctx, &t.CollectiveOptions); err != nil {
		return err
	}

	if t.baseTable, err = t.shareBaseTable(ctx, t.windowWorld); err != nil {
		return err
	}

	rt := t.windowWorld.rt
	t.result = TuneResult{Device: rt.Device().Name, Ranks: rt.Size()}
	if t.baseTable.Device != t.result.Device || t.baseTable.Library != rt.Library() ||
		t.baseTable.DataType != t.DataType.String() {
		t.baseTable = t.baseTable.WithoutTimes()
	}

	return nil
}

func (t *tuner) run(ctx context.Context) error {
	for i := range t.Operations {
		op := &t.Operations[i]
		times, err := t.measureOperation(ctx, op)
		if err != nil {
			return fmt.Errorf("tuning %s: %w", op.Name, err)
		}

		newRules := t.deriveRules(op, times)
		if len(newRules) == 0 {
			t.result.Skipped = append(t.result.Skipped, skipReason(op, t.DataType))
		}

		t.result.Rules = append(t.result.Rules, newRules...)
	}

	return nil
}

// deriveRules derives the rules for an operation from the new times, and from the times of other
// sizes in the base table. It returns no rule for a kind of memory without new times.
func (t *tuner) deriveRules(op *Operation, times *points) (rules []tuning.Rule) {
	rt := t.windowWorld.rt
	info := rt.Device()
	defaultPath := tuning.Builtin(info.Backend, info.Name).DefaultPath
	for _, measured := range []struct {
		memory tuning.Memory // "" for a rule without the direct path
		points []tuning.Point
	}{{"", times.windows}, {tuning.Symmetric, times.direct}, {tuning.AnyMemory, times.anywhere}} {
		if len(measured.points) == 0 {
			continue
		}

		calls := tuning.Calls{
			Operation: op.kind.String(), Memory: measured.memory, Shape: tuning.Shape{
				Ranks: rt.Size(), Machines: rt.World().Stats().Tuning.Machines,
			},
		}
		merged := mergePoints(t.baseTable.Measured(calls), measured.points)
		t.hasBaseTimes = t.hasBaseTimes || len(merged) > len(measured.points)
		rules = append(rules, tuning.Derive(calls, defaultPath, merged))
	}

	return rules
}

// newTable returns the base table with the new rules, and with a description of the measurement.
func (t *tuner) newTable() *tuning.Table {
	method := "calls one by one"
	if t.GraphCalls > 0 {
		method = fmt.Sprintf("replays of graphs of up to %d calls", t.GraphCalls)
	}

	rt, rules := t.windowWorld.rt, t.result.Rules
	table := t.baseTable.Replace(rules...)
	table.Device, table.Library, table.Date = rt.Device().Name, rt.Library(), t.Date
	table.DataType = t.DataType.String()
	table.Source = fmt.Sprintf("symmem tune: %d batches of %v on each path, alternating, %v, %s, "+
		"medians of the slowest rank; %s; %s", t.Plan.Batches, t.Plan.Batch, t.DataType, method,
		tuning.DeriveMethod, NoiseMethod)
	if t.hasBaseTimes || len(table.Rules) > len(rules)+len(table.General()) {
		table.Source += "; rules for other operations and ranks, and times for other sizes, are from " +
			"the base table"
	}

	return table
}

// points holds the times of one operation in ascending order of size. Each point contains the time
// of the plain path and the times of the paths in the comment.
type points struct {
	windows  []tuning.Point // the window path
	direct   []tuning.Point // the window path, and the direct or the two-level path
	anywhere []tuning.Point // the direct path on buffers outside windows
}

// maxOutsideBytes is larger than any call that can take the direct path on buffers outside windows.
const maxOutsideBytes = 64 << 20

// measureOperation measures an operation at all sizes, out of place and in place, on all paths
// that it can take.
func (t *tuner) measureOperation(ctx context.Context, op *Operation) (*points, error) {
	times := &points{}
	if !op.kind.HasTuningRules() {
		return times, nil
	}

	lastBytes := int64(0)
	for _, size := range t.Sizes {
		row := &Row{Operation: op, Ranks: t.windowWorld.rt.Size()}
		row.Count, row.Bytes = op.countAndSize(size, row.Ranks, t.DataType)
		if row.Bytes <= lastBytes { // rounded up to the same size
			continue
		}

		lastBytes = row.Bytes
		for _, inPlace := range []bool{false, true} {
			if inPlace && !op.kind.HasInPlace() {
				continue
			}

			variants, err := t.listVariants(ctx, row, inPlace)
			if err != nil {
				return nil, err
			}

			if len(variants) == 1 { // only the plain path
				continue
			}

			t.reportProgress("%s of %v %v %s", op.Name, tuning.Size(row.Bytes), t.DataType,
				placementText(inPlace))
			nsPerCall, err := t.measureVariants(ctx, row, inPlace, variants)
			if err != nil {
				return nil, err
			}

			times.addPoints(row.Bytes, inPlace, batches{
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

func placementText(inPlace bool) string {
	if inPlace {
		return "in place"
	}

	return "out of place"
}

// listVariants returns the variants of a call to measure. The first variant takes the plain path.
func (t *tuner) listVariants(
	ctx context.Context, row *Row, inPlace bool,
) (variants []variant, err error) {
	paths, err := t.windowWorld.possiblePaths(ctx, &t.CollectiveOptions, row, inPlace)
	if err != nil {
		return nil, err
	}

	for _, path := range paths {
		variants = append(variants, variant{t.windowWorld, path})
	}

	// Outside windows, calls can be in place only in groups of one rank, which need no tuning.
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

// measureVariants measures the variants of a call alternately, and returns the times of each in
// nanoseconds per call. It returns an error if an element of a result is wrong.
func (t *tuner) measureVariants(
	ctx context.Context, row *Row, inPlace bool, variants []variant,
) (map[variant][]float64, error) {
	runners, err := t.measureAll(ctx, row, inPlace, variants)
	if err != nil {
		return nil, err
	}

	nsPerCall := map[variant][]float64{}
	for i, r := range runners {
		if r.wrong > 0 {
			return nil, fmt.Errorf("%d elements are wrong in a call of %d bytes on the %v path, %s",
				r.wrong, row.Bytes, r.choice, placementText(inPlace))
		}

		nsPerCall[variants[i]] = r.nsPerCall
	}

	return nsPerCall, nil
}

// batches holds the times of all batches at one size, in nanoseconds per call. A field is nil if
// it was not measured.
type batches struct {
	plain, window, direct, twoLevel []float64 // on buffers in windows
	anywhere                        []float64 // on the direct path, on buffers outside windows
}

func (p *points) addPoints(bytes int64, inPlace bool, b batches) {
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
		point.TwoLevelUS = point.DirectUS
		point.DirectUS = 0
	}

	if b.anywhere != nil {
		appendPoint(&p.anywhere, nil, b.anywhere)
	}
}

// newPoint summarizes times in nanoseconds per call. window and direct are nil if they were not
// measured. The noise of the point is that of the ratio between the direct path and the faster
// other path or, without the direct path, between plain and window.
func newPoint(bytes int64, plain, window, direct []float64) tuning.Point {
	p := tuning.Point{
		Bytes: tuning.Size(bytes), PlainUS: microseconds(plain), WindowUS: microseconds(window),
		DirectUS: microseconds(direct),
	}
	dividends, divisors := plain, window
	if direct != nil {
		divisors = direct
		if window != nil && p.WindowUS < p.PlainUS {
			dividends = window
		}
	}

	p.NoisePercent = roundTo(noisePercent(elementRatios(dividends, divisors)), 10)
	return p
}

// microseconds returns the median of times in nanoseconds as microseconds, or 0 if nsPerCall is
// nil.
func microseconds(nsPerCall []float64) float64 {
	if nsPerCall == nil {
		return 0
	}

	return max(roundTo(report.Summarize(nsPerCall).Median/1e3, 1e3), 1e-3)
}
