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

// Decode says what bench decode measures: a layer of a model that answers, split over ranks as
// tensor parallelism does it: a matrix product, then an all-reduce. Every rank runs the same one.
type Decode struct {
	// Hidden is the width of the model, Layers how many layers are captured into one graph.
	Hidden, Layers int
	// Sequences are how many sequences are answered at once.
	Sequences []int
	Product   Product
	// Backend, Tuning and Timeout are those of symmem.Options.
	Backend, Tuning string
	Timeout         time.Duration
	Plan            Plan
}

// decodeBar is how many times what plain takes auto may take: a little more, except for one
// sequence on four GPUs, where it is to be faster by a quarter, or by 60 percent where it can go
// direct.
func decodeBar(sequences, ranks int, direct bool) float64 {
	switch {
	case sequences != 1 || ranks != 4:
		return 1.02
	case direct:
		return 1 / 1.6
	default:
		return 1 / 1.25
	}
}

// collective describes the world and the buffers of the measurement.
func (o *Decode) collective() *Collective {
	return &Collective{
		DataType: symmem.BFloat16, ReduceOp: symmem.Sum, Path: Window,
		MaxBytes: int64(slices.Max(o.Sequences)) * int64(o.Hidden) * bfloat16Bytes,
		Checks:   []symmem.CheckLevel{symmem.CheckRegistration}, Backend: o.Backend,
		Tuning: o.Tuning, Timeout: o.Timeout, Plan: o.Plan,
	}
}

// Run measures as one rank of a world that a launcher has started. Every rank gets the same report.
func (o *Decode) Run(ctx context.Context) (*Report, error) {
	report, c := NewReport("decode"), o.collective()
	// cuBLAS wants one thread, on which the GPU is current.
	measure := func(l *lane, local int, gpu *cuda.Driver) error {
		by, err := o.Product.multiplier(l, local, gpu)
		if err != nil {
			return fmt.Errorf("making products ready: %w", err)
		}
		return errors.Join(o.run(ctx, c, l, by, report), by.close())
	}
	return report, c.onGPU(ctx, "has no streams for products", measure)
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

func (o *Decode) run(
	ctx context.Context, c *Collective, l *lane, by multiplier, report *Report,
) error {
	model, err := newLayer(ctx, l, by, o.Hidden, slices.Max(o.Sequences))
	if err != nil {
		return fmt.Errorf("making a layer: %w", err)
	}
	for _, n := range o.Sequences {
		result, err := o.measure(ctx, c, l, model, n)
		if err != nil {
			return fmt.Errorf("measuring %d sequences: %w", n, err)
		}
		report.Results = append(report.Results, result)
	}
	return nil
}

// measure times the replays of graphs on all paths in turns.
func (o *Decode) measure(
	ctx context.Context, c *Collective, l *lane, model *layer, sequences int,
) (result Result, err error) {
	var runners []*runner
	defer func() { err = errors.Join(err, forget(runners)) }()
	op := operationOf(symmem.OpAllReduce)
	for _, choice := range []symmem.PathChoice{
		symmem.PathAuto, symmem.PathPlain, symmem.PathWindow, symmem.PathDirect,
	} {
		r := &runner{lane: l, choice: choice, opsPerIter: o.Layers, call: model.call(sequences)}
		if err := r.aim(ctx); err != nil {
			return result, err
		}
		if choice != symmem.PathAuto && r.took != choice.String() {
			continue
		}
		if err := o.capture(ctx, r, model, sequences); err != nil {
			return result, err
		}
		runners = append(runners, r)
		if err := r.calibrate(ctx, c, op); err != nil {
			return result, err
		}
	}
	alone, err := o.product(ctx, c, l, model, sequences)
	runners = append(runners, alone)
	if err != nil {
		return result, err
	}
	if err := c.play(ctx, runners, op); err != nil {
		return result, err
	}
	return o.result(l, sequences, runners), nil
}

// operationOf finds the operation of a kind.
func operationOf(kind symmem.Operation) *Operation {
	return &operations[slices.IndexFunc(operations, func(o Operation) bool { return o.kind == kind })]
}

// aim sets the world to the choice of a runner of a layer, and notes the path that its all-reduce
// takes.
func (r *runner) aim(ctx context.Context) error {
	if err := r.take(ctx, r.choice); err != nil {
		return err
	}
	e, err := r.rt.World().Explain(
		symmem.OpAllReduce, r.call.send, r.call.recv, r.call.count, symmem.BFloat16)
	r.took = e.Path
	return err
}

// product makes a runner of the layers' products alone, which no path can be faster than.
func (o *Decode) product(
	ctx context.Context, c *Collective, l *lane, model *layer, sequences int,
) (*runner, error) {
	r := &runner{lane: l, took: "product", opsPerIter: o.Layers, call: model.call(sequences)}
	err := r.record(ctx, model, sequences, func(i int) error { return model.product(i, sequences) })
	if err != nil {
		return r, err
	}
	return r, r.calibrate(ctx, c, operationOf(symmem.OpAllReduce))
}

// capture records the layers on a path, and checks what a replay computes.
func (o *Decode) capture(ctx context.Context, r *runner, model *layer, sequences int) error {
	err := r.record(ctx, model, sequences, func(i int) error {
		return model.run(ctx, i, r.call, sequences)
	})
	if err != nil {
		return err
	}
	if err := r.meet(ctx); err != nil {
		return err
	}
	return model.check(ctx, r, sequences)
}

// record captures what every layer queues.
func (r *runner) record(
	ctx context.Context, model *layer, sequences int, queue func(layer int) error,
) error {
	s := r.rt.DefaultStream()
	// What loads at the first product cannot be captured.
	if err := errors.Join(model.product(0, sequences), s.Synchronize(ctx)); err != nil {
		return err
	}
	if err := s.BeginCapture(); err != nil {
		return err
	}
	var failed error
	for i := range r.opsPerIter {
		failed = errors.Join(failed, queue(i))
	}
	graph, err := s.EndCapture()
	r.graph = graph
	if err := errors.Join(failed, err); err != nil {
		return fmt.Errorf("capturing %d layers: %w", r.opsPerIter, err)
	}
	return nil
}

func (o *Decode) result(l *lane, sequences int, runners []*runner) Result {
	auto, plain, others := runners[0], runners[1], runners[2:]
	r := Result{
		Name: "decode layer",
		Params: map[string]any{
			"batch": sequences, "bytes": sequences * o.Hidden * bfloat16Bytes, "ranks": l.rt.Size(),
			"hidden": o.Hidden, "layers": o.Layers, "took": auto.took, "product": string(o.Product),
		},
		Summary: Summarize(auto.perOp), Counts: map[string]float64{},
	}
	base := Summarize(plain.perOp)
	r.against("plain", base)
	*r.Ratio = Summarize(ratios(plain.perOp, auto.perOp)).Median
	r.Counts["gain %"] = 100 * (*r.Ratio - 1)
	direct := false
	for _, other := range others {
		r.Counts[other.took+" us"] = Summarize(other.perOp).Median / 1e3
		direct = direct || other.choice == symmem.PathDirect
	}
	r.Bar = decodeBar(sequences, l.rt.Size(), direct) * base.Median
	return r
}
