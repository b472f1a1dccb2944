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
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
	"symmem/internal/ranktest"
	bits "symmem/internal/reduce"
)

// BenchmarkNorm measures the end of a layer whose rows are split over GPUs: an all-reduce of [rows,
// hidden] bfloat16, the addition of a residual and an RMSNorm. A turn is a batch each of three
// ways: in one call, which is two kernels (us-one-call); with the all-reduce of the direct path and
// a kernel each for the rest (us-three); and so with NCCL's all-reduce (us-nccl). ratio is the
// median of us-three over us-one-call of the same turn. Calls are replayed in graphs, and a time is
// that of the slowest rank. With SYMMEM_TEST_BARS one call must not take longer than three.
//
// It takes all GPUs that are seen. Before a shape is measured both ways must give the same residual
// to the bit, and outputs up to one unit in the last place.
func BenchmarkNorm(b *testing.B) {
	const most, widest = 256, 8192
	ranks := normBenches(b, most, widest)
	for _, hidden := range []int64{4096, widest} {
		for rows := int64(1); rows <= most; rows *= 2 {
			b.Run(fmt.Sprintf("hidden=%d/rows=%d", hidden, rows), func(b *testing.B) {
				measureNorm(b, ranks, rows, hidden)
			})
		}
	}
}

// normBench is a rank with tensors, and with the kernels for what is left after an all-reduce.
type normBench struct {
	*symmem.Runtime
	ctx       context.Context
	gpu       *cuda.Driver // which makes the context current in each call
	device    cuda.Device
	overlaps  bool
	add, norm cuda.Function
	sums      symmem.Memory
	args      symmem.NormArgs
	refused   error // why the shape is not measured
	graphs    []*symmem.Graph
}

// The ways of a norm, in the order of normBench.graphs.
const (
	oneCall = iota
	threeSteps
	withNCCL
	normWays
)

// Calls are captured into graphs, whose replays make a batch.
const (
	normCalls   = 20
	normReplays = 50
)

// normBenches opens a rank on each GPU with tensors of the largest shape, or says why it cannot.
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
		b.Skip(fmt.Errorf("norms take two GPUs, here are %d: %w", n, symmem.ErrUnsupported))
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
		return errors.Join(r.load(), r.allocate(rows, hidden))
	})
	return ranks
}

// onEach runs a function on all ranks at once.
func onEach(b *testing.B, ranks []*normBench, f func(*normBench) error) {
	b.Helper()
	err := ranktest.Each(len(ranks), func(i int) error {
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

// load loads the kernels of an addition and a norm for this rank's GPU.
func (r *normBench) load() error {
	gpu, err := cuda.Load()
	if err != nil {
		return err
	}
	if r.device, err = gpu.Device(r.Device().Ordinal); err != nil {
		return err
	}
	primary, err := r.device.RetainPrimary()
	if err != nil {
		return err
	}
	r.gpu = gpu.In(primary)
	major, minor, err := r.device.ComputeCapability()
	if err != nil {
		return err
	}
	overlaps, err := r.device.LaunchesOverlap()
	if err != nil {
		return err
	}
	r.overlaps = overlaps && kernels.Wait(major)
	code, err := kernels.Object(major, minor)
	if err != nil {
		return err
	}
	module, err := r.gpu.ModuleLoadData(code)
	if err != nil {
		return err
	}
	if r.add, err = r.gpu.ModuleGetFunction(module, kernels.AddKernel); err != nil {
		return err
	}
	r.norm, err = r.gpu.ModuleGetFunction(module, kernels.NormKernel)
	return err
}

// close ends the rank. The module goes with the context.
func (r *normBench) close() error {
	symmem.FreeLive(r.Runtime)
	return errors.Join(r.Close(), r.device.ReleasePrimary())
}

// allocate makes tensors: those that the all-reduce reads and writes in windows.
func (r *normBench) allocate(rows, hidden int64) error {
	shared, err := r.NewPool(symmem.PoolOptions{Domain: r.World()})
	if err != nil {
		return err
	}
	own, err := r.NewPool(symmem.PoolOptions{})
	if err != nil {
		return err
	}
	r.args.Epsilon = 1e-5
	for _, t := range []struct {
		to    *symmem.Memory
		from  *symmem.Pool
		bytes int64
	}{
		{&r.args.Input, shared, 2 * rows * hidden},
		{&r.sums, shared, 2 * rows * hidden},
		{&r.args.Output, own, 2 * rows * hidden},
		{&r.args.Residual, own, 2 * rows * hidden},
		{&r.args.Weight, own, 2 * hidden},
	} {
		buffer, err := t.from.Alloc(t.bytes)
		if err != nil {
			return err
		}
		*t.to = buffer.Memory()
	}
	return shared.Register(r.ctx, r.World())
}

// call queues a norm: in one call, or in three.
func (r *normBench) call(inOne bool) error {
	if inOne {
		return r.World().AllReduceRMSNorm(r.ctx, r.args, nil)
	}
	a, s := &r.args, r.DefaultStream()
	err := r.World().AllReduce(r.ctx, a.Input, r.sums, a.Rows*a.Hidden, symmem.BFloat16, symmem.Sum, s)
	if err != nil {
		return err
	}
	l := kernels.Local{
		Norm: driver.Norm{
			Rows: a.Rows, Hidden: a.Hidden, Epsilon: a.Epsilon, Residual: a.Residual.Address(),
			Weight: a.Weight.Address(),
		},
		Send: r.sums.Address(), Recv: a.Output.Address(),
	}
	const threadsOfAdd = 256 // of which each adds driver.NormUnit elements
	adders := (l.Rows*l.Hidden/driver.NormUnit + threadsOfAdd - 1) / threadsOfAdd
	if err := r.launch(r.add, int(adders), threadsOfAdd, l.Params()); err != nil {
		return err
	}
	blocks, threads := l.Grid()
	return r.launch(r.norm, blocks, threads, l.Params())
}

// launch queues a kernel, which may start before those ahead of it have ended, as those of the
// direct path do.
func (r *normBench) launch(f cuda.Function, blocks, threads int, params cuda.Params) error {
	stream := cuda.Stream(r.DefaultStream().Handle())
	if r.overlaps {
		return r.gpu.LaunchOverlapping(f, blocks, threads, stream, &params)
	}
	return r.gpu.LaunchKernel(f, blocks, threads, stream, &params)
}

// compare makes sure that both ways give the same. It leaves zeros: what adds up to itself again
// and again would overflow.
func (r *normBench) compare() error {
	var residuals, outputs [2][]uint16
	for i, inOne := range []bool{true, false} {
		if err := errors.Join(r.write(1), r.call(inOne)); err != nil {
			return err
		}
		var err error
		if residuals[i], err = r.bits(r.args.Residual); err != nil {
			return err
		}
		if outputs[i], err = r.bits(r.args.Output); err != nil {
			return err
		}
	}
	for i := range residuals[0] {
		// bfloat16 of one sign lie as their bits do: a bit is one unit in the last place.
		apart := int(outputs[0][i]) - int(outputs[1][i])
		if residuals[0][i] != residuals[1][i] || apart < -1 || apart > 1 {
			return fmt.Errorf("rank %d, element %d: in one call %#x and %#x, in three %#x and %#x",
				r.Rank(), i, residuals[0][i], outputs[0][i], residuals[1][i], outputs[1][i])
		}
	}
	return r.write(0)
}

// write writes small numbers, times a factor, to all that is read.
func (r *normBench) write(factor float32) error {
	s := r.DefaultStream()
	for k, m := range []symmem.Memory{r.args.Input, r.args.Residual, r.args.Weight} {
		n := r.args.Hidden
		if k < 2 {
			n *= r.args.Rows
		}
		values := make([]uint16, n)
		for i := range values {
			own := (1 - min(k, 1)) * r.Rank() // the input is another one on each rank
			values[i] = bits.BFloat16Bits(float32((i*(k+3)+i/7+own)%13-4) * factor)
		}
		to, err := m.Slice(0, 2*n)
		if err != nil {
			return err
		}
		if err := errors.Join(s.Copy(to, symmem.Host(values)), s.Synchronize(r.ctx)); err != nil {
			return err
		}
	}
	return s.Fill(r.args.Output, 0xff)
}

// bits reads the elements of a tensor.
func (r *normBench) bits(m symmem.Memory) ([]uint16, error) {
	got := make([]uint16, r.args.Rows*r.args.Hidden)
	from, err := m.Slice(0, int64(2*len(got)))
	if err != nil {
		return nil, err
	}
	s := r.DefaultStream()
	return got, errors.Join(s.Copy(symmem.Host(got), from), s.Synchronize(r.ctx))
}

// capture makes the graph of a way.
func (r *normBench) capture(way int) error {
	path := symmem.PathDirect
	if way == withNCCL {
		path = symmem.PathPlain
	}
	if err := r.World().SetPath(r.ctx, path); err != nil {
		return err
	}
	s := r.DefaultStream()
	if err := s.BeginCapture(); err != nil {
		return err
	}
	var failed error
	for range normCalls {
		failed = errors.Join(failed, r.call(way == oneCall))
	}
	graph, err := s.EndCapture()
	if err := errors.Join(failed, err); err != nil {
		return fmt.Errorf("capturing %d calls: %w", normCalls, err)
	}
	r.graphs = append(r.graphs, graph)
	return nil
}

// forget closes the graphs, and takes the direct path again.
func (r *normBench) forget() error {
	errs := []error{r.DefaultStream().Synchronize(r.ctx)}
	for _, g := range r.graphs {
		errs = append(errs, g.Close())
	}
	r.graphs = nil
	return errors.Join(append(errs, r.World().SetPath(r.ctx, symmem.PathDirect))...)
}

// batch replays a graph from a common start, and returns microseconds a call.
func (r *normBench) batch(way int) (float64, error) {
	s := r.DefaultStream()
	if err := errors.Join(r.World().Barrier(r.ctx, nil), s.Synchronize(r.ctx)); err != nil {
		return 0, err
	}
	begin := time.Now()
	for range normReplays {
		if err := r.graphs[way].Launch(s); err != nil {
			return 0, err
		}
	}
	err := s.Synchronize(r.ctx)
	return float64(time.Since(begin).Nanoseconds()) / 1e3 / (normCalls * normReplays), err
}

// measureNorm measures a shape in turns. Another way is the first in each.
func measureNorm(b *testing.B, ranks []*normBench, rows, hidden int64) {
	onEach(b, ranks, func(r *normBench) error {
		r.args.Rows, r.args.Hidden = rows, hidden
		if r.refused = r.compare(); r.refused != nil {
			return skipped(r.refused)
		}
		for way := range normWays {
			if err := r.capture(way); err != nil {
				return err
			}
		}
		return nil
	})
	if err := ranks[0].refused; err != nil {
		b.Skipf("this shape is not for one call: %v", err)
	}
	var took [normWays][]float64
	var ratios []float64
	turn := func(n int) (slowest [normWays]float64) {
		for i := range normWays {
			way := (i + n) % normWays
			times := make([]float64, len(ranks))
			onEach(b, ranks, func(r *normBench) (err error) {
				times[r.Rank()], err = r.batch(way)
				return err
			})
			slowest[way] = slices.Max(times)
		}
		return slowest
	}
	turn(0) // warms up
	for n := 0; b.Loop(); n++ {
		times := turn(n)
		for way, us := range times {
			took[way] = append(took[way], us)
		}
		ratios = append(ratios, times[threeSteps]/times[oneCall])
	}
	one, three := median(took[oneCall]), median(took[threeSteps])
	b.ReportMetric(0, "ns/op") // of a turn, which says nothing
	b.ReportMetric(one, "us-one-call")
	b.ReportMetric(three, "us-three")
	b.ReportMetric(median(took[withNCCL]), "us-nccl")
	b.ReportMetric(median(ratios), "ratio")
	if os.Getenv(barsVariable) != "" && one > three {
		b.Errorf("one call takes %.2f us, three %.2f", one, three)
	}
	onEach(b, ranks, (*normBench).forget)
}

// skipped drops the error of a shape that the direct path has not, as all ranks find.
func skipped(err error) error {
	if errors.Is(err, symmem.ErrUnsupported) {
		return nil
	}
	return err
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}
