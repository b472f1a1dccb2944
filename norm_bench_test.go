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

// BenchmarkNorm measures the end of a tensor-parallel layer: an all-reduce of [rows, hidden]
// bfloat16, the addition of a residual, and an RMSNorm. It compares three implementations.
// us-one-call is one call, which runs two kernels. us-three is an all-reduce on the direct path
// followed by two more kernels. us-nccl is NCCL's all-reduce followed by the same two kernels. Each
// turn measures a batch of each implementation. ratio is the median over the turns of us-three /
// us-one-call. Graphs replay the calls. Times are those of the slowest rank. If SYMMEM_TEST_BARS is
// set, one call must not be slower than three.
//
// The benchmark uses all visible GPUs. Before each shape it compares one call with three. The
// residuals must be equal bit by bit. Outputs may differ by one unit in the last place.
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

// normBench is a rank that runs every implementation of a norm.
type normBench struct {
	*symmem.Runtime
	ctx       context.Context
	gpu       *cuda.Driver // makes the context current in each call
	device    cuda.Device
	overlaps  bool
	add, norm cuda.Function
	sums      symmem.Memory
	args      symmem.NormArgs
	refused   error // explains why the shape is not measured
	graphs    []*symmem.Graph
}

// Implementations of a norm, in the order of normBench.graphs.
const (
	oneCall = iota
	threeSteps
	withNCCL
	normVariants
)

// A graph has normCalls calls. A batch replays a graph normReplays times.
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

// load loads the addition and norm kernels for this rank's GPU.
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

// close closes the rank. It releases the CUDA context, which unloads the module.
func (r *normBench) close() error {
	symmem.FreeLive(r.Runtime)
	return errors.Join(r.Close(), r.device.ReleasePrimary())
}

// allocate makes the tensors. Windows hold the tensors of the all-reduce.
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

// call queues a norm as one call or as three.
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
	const threadsOfAdd = 256 // each thread adds driver.NormUnit elements
	adders := (l.Rows*l.Hidden/driver.NormUnit + threadsOfAdd - 1) / threadsOfAdd
	if err := r.launch(r.add, int(adders), threadsOfAdd, l.Params()); err != nil {
		return err
	}
	blocks, threads := l.Grid()
	return r.launch(r.norm, blocks, threads, l.Params())
}

// launch queues a kernel. The kernel may start before earlier kernels end, like kernels of the
// direct path.
func (r *normBench) launch(f cuda.Function, blocks, threads int, params cuda.Params) error {
	stream := cuda.Stream(r.DefaultStream().Handle())
	if r.overlaps {
		return r.gpu.LaunchOverlapping(f, blocks, threads, stream, &params)
	}
	return r.gpu.LaunchKernel(f, blocks, threads, stream, &params)
}

// compare checks that one call and three give the same results. It then clears the tensors. Without
// this, repeated sums in place would overflow.
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
		// For bfloat16 values of one sign, the bits are ordered like the values. The difference of
		// the bits counts units in the last place.
		difference := int(outputs[0][i]) - int(outputs[1][i])
		if residuals[0][i] != residuals[1][i] || difference < -1 || difference > 1 {
			return fmt.Errorf("rank %d, element %d: got %#x and %#x in one call, %#x and %#x in three",
				r.Rank(), i, residuals[0][i], outputs[0][i], residuals[1][i], outputs[1][i])
		}
	}
	return r.write(0)
}

// write fills the input tensors with small numbers times a factor.
func (r *normBench) write(factor float32) error {
	s := r.DefaultStream()
	for k, m := range []symmem.Memory{r.args.Input, r.args.Residual, r.args.Weight} {
		n := r.args.Hidden
		if k < 2 {
			n *= r.args.Rows
		}
		values := make([]uint16, n)
		for i := range values {
			own := (1 - min(k, 1)) * r.Rank() // only the input differs between ranks
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

// capture captures normCalls calls of an implementation.
func (r *normBench) capture(implementation int) error {
	path := symmem.PathDirect
	if implementation == withNCCL {
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
		failed = errors.Join(failed, r.call(implementation == oneCall))
	}
	graph, err := s.EndCapture()
	if err := errors.Join(failed, err); err != nil {
		return fmt.Errorf("capturing %d calls: %w", normCalls, err)
	}
	r.graphs = append(r.graphs, graph)
	return nil
}

// forget closes the graphs and sets the direct path again.
func (r *normBench) forget() error {
	errs := []error{r.DefaultStream().Synchronize(r.ctx)}
	for _, g := range r.graphs {
		errs = append(errs, g.Close())
	}
	r.graphs = nil
	return errors.Join(append(errs, r.World().SetPath(r.ctx, symmem.PathDirect))...)
}

// batch replays a graph after a barrier and returns the time per call in microseconds.
func (r *normBench) batch(implementation int) (float64, error) {
	s := r.DefaultStream()
	if err := errors.Join(r.World().Barrier(r.ctx, nil), s.Synchronize(r.ctx)); err != nil {
		return 0, err
	}
	begin := time.Now()
	for range normReplays {
		if err := r.graphs[implementation].Launch(s); err != nil {
			return 0, err
		}
	}
	err := s.Synchronize(r.ctx)
	return float64(time.Since(begin).Nanoseconds()) / 1e3 / (normCalls * normReplays), err
}

// measureNorm measures a shape in turns. Each turn begins with another implementation.
func measureNorm(b *testing.B, ranks []*normBench, rows, hidden int64) {
	onEach(b, ranks, func(r *normBench) error {
		r.args.Rows, r.args.Hidden = rows, hidden
		if r.refused = r.compare(); r.refused != nil {
			return ignoreUnsupported(r.refused)
		}
		for implementation := range normVariants {
			if err := r.capture(implementation); err != nil {
				return err
			}
		}
		return nil
	})
	if err := ranks[0].refused; err != nil {
		b.Skipf("one call does not support this shape: %v", err)
	}
	var times [normVariants][]float64
	var ratios []float64
	turn := func(n int) (slowest [normVariants]float64) {
		for i := range normVariants {
			which := (i + n) % normVariants
			ofRanks := make([]float64, len(ranks))
			onEach(b, ranks, func(r *normBench) (err error) {
				ofRanks[r.Rank()], err = r.batch(which)
				return err
			})
			slowest[which] = slices.Max(ofRanks)
		}
		return slowest
	}
	turn(0) // warms up
	for n := 0; b.Loop(); n++ {
		slowest := turn(n)
		for which, us := range slowest {
			times[which] = append(times[which], us)
		}
		ratios = append(ratios, slowest[threeSteps]/slowest[oneCall])
	}
	one, three := median(times[oneCall]), median(times[threeSteps])
	b.ReportMetric(0, "ns/op") // hides the time of a turn
	b.ReportMetric(one, "us-one-call")
	b.ReportMetric(three, "us-three")
	b.ReportMetric(median(times[withNCCL]), "us-nccl")
	b.ReportMetric(median(ratios), "ratio")
	if os.Getenv(barsVariable) != "" && one > three {
		b.Errorf("one call takes %.2f us, three take %.2f us", one, three)
	}
	onEach(b, ranks, (*normBench).forget)
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
