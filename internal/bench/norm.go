package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"symmem"
	backend "symmem/driver/nccl"
	"symmem/internal/cuda"
	"symmem/internal/rendezvous"
)

// Norm says what bench norm measures: all-reduce, residual and RMSNorm in one call, which is two
// kernels, against three steps of a kernel each. Every rank runs the same one.
type Norm struct {
	// Hidden are the lengths of rows, Rows how many there are in a call.
	Hidden, Rows []int
	// GraphOps is how many calls are captured into one graph.
	GraphOps int
	// Backend and Timeout are those of symmem.Options.
	Backend string
	Timeout time.Duration
	Plan    Plan
}

// bfloat16Bytes is the size of an element.
const bfloat16Bytes = 2

// collective describes the world and the buffers of the measurement.
func (o *Norm) collective() *Collective {
	return &Collective{
		DataType: symmem.BFloat16, ReduceOp: symmem.Sum, Path: Direct, MaxBytes: o.largest(),
		Checks: []symmem.CheckLevel{symmem.CheckRegistration}, Backend: o.Backend,
		Timeout: o.Timeout, Plan: o.Plan,
	}
}

// largest is the size of the largest tensor.
func (o *Norm) largest() int64 {
	return int64(slices.Max(o.Rows)) * int64(slices.Max(o.Hidden)) * bfloat16Bytes
}

// Run measures as one rank of a world that a launcher has started. Every rank gets the same report.
func (o *Norm) Run(ctx context.Context) (*Report, error) {
	report, c := NewReport("norm"), o.collective()
	return report, c.onGPU(ctx, "runs no kernels", func(l *lane, local int, gpu *cuda.Driver) error {
		rest, err := newRest(gpu, local)
		if err != nil {
			return err
		}
		return errors.Join(o.run(ctx, c, l, rest, report), rest.close())
	})
}

func (o *Norm) run(
	ctx context.Context, c *Collective, l *lane, rest *rest, report *Report,
) error {
	d, err := newDrafts(l, o.largest(), slices.Max(o.Hidden))
	if err != nil {
		return fmt.Errorf("making tensors: %w", err)
	}
	var missing error
	for _, hidden := range o.Hidden {
		for _, rows := range o.Rows {
			result, err := o.measure(ctx, c, d.of(rows, hidden), rest)
			if errors.Is(err, symmem.ErrUnsupported) {
				missing = err
				continue
			}
			if err != nil {
				return fmt.Errorf("measuring %d rows of %d: %w", rows, hidden, err)
			}
			report.Results = append(report.Results, result)
		}
	}
	if len(report.Results) > 0 {
		return nil // all others have more rows
	}
	return missing
}

// measure times the replays of graphs of all ways in turns.
func (o *Norm) measure(
	ctx context.Context, c *Collective, d *draft, rest *rest,
) (result Result, err error) {
	var runners []*runner
	defer func() { err = errors.Join(err, forget(runners)) }()
	// In one call, in three, and in three with NCCL's all-reduce.
	fused := func() error { return d.rt.World().AllReduceRMSNorm(ctx, d.args, nil) }
	steps := func() error { return d.steps(ctx, rest) }
	if err := d.compare(ctx, fused, steps); err != nil {
		return result, err
	}
	op := operationOf(symmem.OpAllReduce)
	for _, way := range []struct {
		choice symmem.PathChoice
		call   func() error
	}{
		{symmem.PathDirect, fused}, {symmem.PathDirect, steps}, {symmem.PathPlain, steps},
	} {
		r := &runner{lane: d.lane, choice: way.choice, opsPerIter: o.GraphOps}
		if err := r.take(ctx, r.choice); err != nil {
			return result, err
		}
		if r.graph, err = d.captured(o.GraphOps, way.call); err != nil {
			return result, err
		}
		runners = append(runners, r)
		if err := r.calibrate(ctx, c, op); err != nil {
			return result, err
		}
	}
	if err := c.play(ctx, runners, op); err != nil {
		return result, err
	}
	return d.result(runners), d.lane.take(ctx, symmem.PathDirect)
}

// onGPU opens the world and runs a measurement on one thread, on which this rank's GPU is current.
// It is given the rank's number on its machine. A backend without GPUs is refused with what it
// lacks.
func (o *Collective) onGPU(
	ctx context.Context, lack string, measure func(l *lane, local int, gpu *cuda.Driver) error,
) error {
	world, err := rendezvous.Discover(os.LookupEnv, rendezvous.Options{})
	if err != nil {
		return err
	}
	l, err := openLane(ctx, o, 0)
	if err != nil {
		return fmt.Errorf("opening the world: %w", err)
	}
	if l.rt.DefaultStream().Handle() == 0 {
		err = fmt.Errorf("backend %s %s: %w", l.rt.Device().Backend, lack, symmem.ErrUnsupported)
	} else {
		err = backend.Current(world.LocalRank, func(gpu *cuda.Driver) error {
			return measure(l, world.LocalRank, gpu)
		})
	}
	return errors.Join(err, l.rt.Close())
}

// operationOf finds the operation of a kind.
func operationOf(kind symmem.Operation) *Operation {
	return &operations[slices.IndexFunc(operations, func(o Operation) bool { return o.kind == kind })]
}

// captured records calls into a graph.
func (d *draft) captured(calls int, call func() error) (*symmem.Graph, error) {
	s := d.rt.DefaultStream()
	if err := s.BeginCapture(); err != nil {
		return nil, err
	}
	var failed error
	for range calls {
		failed = errors.Join(failed, call())
	}
	graph, err := s.EndCapture()
	if err = errors.Join(failed, err); err != nil {
		return nil, fmt.Errorf("capturing %d calls: %w", calls, err)
	}
	return graph, nil
}

func (d *draft) result(runners []*runner) Result {
	fused, steps, plain := runners[0], runners[1], runners[2]
	r := Result{
		Name: "norm", Summary: Summarize(fused.perOp), Counts: map[string]float64{},
		Params: map[string]any{
			"rows": int(d.args.Rows), "hidden": int(d.args.Hidden), "ranks": d.rt.Size(),
			"bytes": int(d.args.Rows * d.args.Hidden * bfloat16Bytes),
		},
	}
	base := Summarize(steps.perOp)
	r.against("all-reduce, add, norm", base)
	*r.Ratio = Summarize(ratios(steps.perOp, fused.perOp)).Median
	r.Counts["plain us"] = Summarize(plain.perOp).Median / 1e3
	r.Bar = base.Median
	return r
}
