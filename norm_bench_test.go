package symmem_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"symmem"
	"symmem/driver"
	"symmem/internal/ranktest"
)

// BenchmarkNorm measures AllReduceRMSNorm of [rows, hidden] bfloat16 with and without
// quantization, and an all-reduce of the same size. Each turn measures a batch of each variant.
// The calls are replayed from graphs. Times are those of the slowest rank. If SYMMEM_TEST_BARS is
// set, the benchmark checks two limits. A norm without quantization may take 1 us or 15 percent
// longer than the all-reduce, whichever is more. A norm with quantization may take 3 percent
// longer than a norm without it, or 10 percent longer if it writes both outputs.
//
// The benchmark uses all visible GPUs.
func BenchmarkNorm(b *testing.B) { benchNorms(b, false) }

// BenchmarkScatteredNorm is BenchmarkNorm for ReduceScatterRMSNorm and a reduce-scatter. rows is
// the number of rows of the input, so each rank normalizes fewer.
func BenchmarkScatteredNorm(b *testing.B) { benchNorms(b, true) }

func benchNorms(b *testing.B, scatters bool) {
	const maxRows, maxHidden = 8192, 8192
	ranks := normBenches(b, maxRows, maxHidden)
	for _, r := range ranks {
		r.scatters = scatters
	}

	for _, hidden := range []int64{4096, 7168, maxHidden} {
		for rows := int64(1); rows <= maxRows; rows *= 4 {
			b.Run(fmt.Sprintf("hidden=%d/rows=%d", hidden, rows), func(b *testing.B) {
				if scatters && rows%int64(len(ranks)) != 0 {
					b.Skip(fmt.Errorf("%d ranks do not divide %d rows: %w", len(ranks), rows,
						symmem.ErrUnsupported))
				}

				measureNorm(b, ranks, rows, hidden)
			})
		}
	}
}

// normBench runs every variant of a norm on one rank.
type normBench struct {
	*symmem.Runtime
	ctx      context.Context
	args     symmem.NormArgs
	scatters bool
	refused  error // why the shape is not measured, or nil
	graphs   []*symmem.Graph
}

type normVariant struct {
	name string
	sum  bool // an all-reduce or a reduce-scatter alone
	symmem.Quant
	both bool // also writes the normalized rows
}

// normVariants lists the calls, in the order of normBench.graphs.
var normVariants = []normVariant{
	{name: "sum", sum: true},
	{name: "norm"},
	{name: "static", Quant: symmem.QuantStatic},
	{name: "row", Quant: symmem.QuantPerRow},
	{name: "group", Quant: symmem.QuantPerGroup},
	{name: "both", Quant: symmem.QuantPerGroup, both: true},
}

// A graph contains normCalls calls. A batch replays a graph normReplays times.
const (
	normCalls   = 20
	normReplays = 50
)

// normBenches opens a rank on each GPU with tensors of the largest shape. It may skip the
// benchmark.
func normBenches(b *testing.B, rows, hidden int64) (ranks []*normBench) {
	if os.Getenv(backendVariable) != "nccl" {
		b.Skip(fmt.Errorf("norms run on GPUs, with %s=nccl: %w", backendVariable,
			symmem.ErrUnsupported))
	}

	n, err := symmem.LocalRanks("nccl")
	if err != nil {
		b.Fatal(err)
	}

	if n < 2 {
		b.Skip(fmt.Errorf("norms need two GPUs, found %d: %w", n, symmem.ErrUnsupported))
	}

	runtimes, err := symmem.OpenLocal(b.Context(), n, symmem.Options{
		Backend: "nccl", Path: symmem.PathDirect, Check: symmem.CheckRegistration,
	})
	if err != nil {
		b.Fatal(err)
	}

	ranks = make([]*normBench, n)
	for i, rt := range runtimes {
		ranks[i] = &normBench{Runtime: rt, ctx: context.WithoutCancel(b.Context())}
	}

	b.Cleanup(func() { onEach(b, ranks, (*normBench).close) })
	onEach(b, ranks, func(r *normBench) error {
		return r.allocate(rows, hidden)
	})
	return ranks
}

func onEach(b *testing.B, ranks []*normBench, f func(*normBench) error) {
	b.Helper()
	err := ranktest.Run(len(ranks), func(i int) error {
		err := f(ranks[i])
		if err != nil {
			ranks[i].World().Abort()
		}

		return err
	})
	if err != nil {
		b.Fatal(err)
	}
}

func (r *normBench) close() error {
	symmem.FreeLive(r.Runtime)
	return r.Close()
}

// allocate allocates the tensors. The tensors of the all-reduce are in windows.
func (r *normBench) allocate(rows, hidden int64) error {
	shared, err := r.NewPool(symmem.PoolOptions{Domain: r.World()})
	if err != nil {
		return err
	}

	unshared, err := r.NewPool(symmem.PoolOptions{})
	if err != nil {
		return err
	}

	r.args.Epsilon = 1e-5
	for _, t := range []struct {
		dst   *symmem.Memory
		pool  *symmem.Pool
		bytes int64
	}{
		{&r.args.Input, shared, 2 * rows * hidden},
		{&r.args.Output, shared, 2 * rows * hidden},
		{&r.args.Residual, unshared, 2 * rows * hidden},
		{&r.args.Weight, unshared, 2 * hidden},
		{&r.args.Quantized, unshared, rows * hidden},
		{&r.args.Scales, unshared, 4 * rows * hidden / driver.QuantGroup},
	} {
		buffer, err := t.pool.Alloc(t.bytes)
		if err != nil {
			return err
		}

		*t.dst = buffer.Memory()
	}

	return shared.Register(r.ctx, r.World())
}

func (r *normBench) call(v normVariant) error {
	a := r.args
	if v.sum && r.scatters {
		return r.World().ReduceScatter(r.ctx, a.Input, a.Output, a.Rows*a.Hidden, symmem.BFloat16,
			symmem.Sum, nil)
	}

	if v.sum {
		return r.World().AllReduce(r.ctx, a.Input, a.Output, a.Rows*a.Hidden, symmem.BFloat16,
			symmem.Sum, nil)
	}

	if a.Quant = v.Quant; a.Quant == symmem.QuantNone {
		a.Quantized, a.Scales = symmem.Memory{}, symmem.Memory{}
	} else if !v.both {
		a.Output = symmem.Memory{}
	}

	if r.scatters {
		return r.World().ReduceScatterRMSNorm(r.ctx, a, nil)
	}

	return r.World().AllReduceRMSNorm(r.ctx, a, nil)
}

// clear zeroes the input, because repeated sums in place would overflow. Other elements are about
// 0.75, since kernels divide by a scale of 0 more slowly.
func (r *normBench) clear() error {
	s := r.DefaultStream()
	errs := []error{s.Fill(r.args.Input, 0)}
	for _, m := range []symmem.Memory{r.args.Residual, r.args.Weight, r.args.Scales} {
		errs = append(errs, s.Fill(m, 0x3f))
	}

	return errors.Join(append(errs, s.Synchronize(r.ctx))...)
}

func (r *normBench) capture(v normVariant) error {
	s := r.DefaultStream()
	if err := s.BeginCapture(); err != nil {
		return err
	}

	var failed error
	for range normCalls {
		failed = errors.Join(failed, r.call(v))
	}

	graph, err := s.EndCapture()
	if err := errors.Join(failed, err); err != nil {
		return fmt.Errorf("capturing %d calls: %w", normCalls, err)
	}

	r.graphs = append(r.graphs, graph)
	return nil
}

func (r *normBench) closeGraphs() error {
	errs := []error{r.DefaultStream().Synchronize(r.ctx)}
	for _, g := range r.graphs {
		errs = append(errs, g.Close())
	}

	r.graphs = nil
	return errors.Join(errs...)
}

// batch replays a graph after a barrier and returns the time per call in microseconds.
func (r *normBench) batch(variant int) (float64, error) {
	s := r.DefaultStream()
	if err := errors.Join(r.World().Barrier(r.ctx, nil), s.Synchronize(r.ctx)); err != nil {
		return 0, err
	}

	begin := time.Now()
	for range normReplays {
		if err := r.graphs[variant].Launch(s); err != nil {
			return 0, err
		}
	}

	err := s.Synchronize(r.ctx)
	return float64(time.Since(begin).Nanoseconds()) / 1e3 / (normCalls * normReplays), err
}

// measureNorm measures all variants of a shape in turns. Each turn begins with a different variant.
func measureNorm(b *testing.B, ranks []*normBench, rows, hidden int64) {
	onEach(b, ranks, func(r *normBench) error {
		if r.args.Rows, r.args.Hidden = rows, hidden; r.scatters {
			r.args.Rows /= int64(len(ranks))
		}

		if r.refused = errors.Join(r.clear(), r.call(normVariants[1])); r.refused != nil {
			return ignoreUnsupported(r.refused)
		}

		for _, v := range normVariants {
			if err := r.capture(v); err != nil {
				return err
			}
		}

		return nil
	})
	if err := ranks[0].refused; err != nil {
		b.Skipf("one call does not support this shape: %v", err)
	}

	times := make([][]float64, len(normVariants))
	for n := 0; b.Loop(); n++ {
		for i := range normVariants {
			variant := (i + n) % len(normVariants)
			byRank := make([]float64, len(ranks))
			onEach(b, ranks, func(r *normBench) (err error) {
				byRank[r.Rank()], err = r.batch(variant)
				return err
			})
			times[variant] = append(times[variant], slices.Max(byRank))
		}
	}

	b.ReportMetric(0, "ns/op") // hides the time of a turn
	us := map[string]float64{}
	for i, v := range normVariants {
		us[v.name] = median(times[i])
		b.ReportMetric(us[v.name], "us-"+v.name)
	}

	if os.Getenv(barsVariable) != "" {
		checkNormBars(b, us)
	}

	onEach(b, ranks, (*normBench).closeGraphs)
}

func checkNormBars(b *testing.B, us map[string]float64) {
	b.Helper()
	limits := map[string]float64{
		"norm":   max(us["sum"]+1, 1.15*us["sum"]),
		"static": 1.03 * us["norm"], "row": 1.03 * us["norm"], "group": 1.03 * us["norm"],
		"both": 1.1 * us["norm"],
	}
	for name, limit := range limits {
		if us[name] > limit {
			b.Errorf("%s takes %.2f us; want at most %.2f us", name, us[name], limit)
		}
	}
}

// ignoreUnsupported returns nil for ErrUnsupported. All ranks get this error for the same shapes.
func ignoreUnsupported(err error) error {
	if errors.Is(err, symmem.ErrUnsupported) {
		return nil
	}

	return err
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
