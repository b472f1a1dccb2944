package bench

import (
	"context"
	"errors"
	"fmt"

	"symmem"
	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
	"symmem/internal/reduce"
)

// ErrWrong means that two ways to compute the same differ.
var ErrWrong = errors.New("wrong elements")

// rest are the kernels for the steps that are left to do after an all-reduce.
type rest struct {
	*program
	add, norm cuda.Function
}

func newRest(gpu *cuda.Driver, localRank int) (*rest, error) {
	p, err := loadProgram(gpu, localRank, kernels.Object)
	if err != nil {
		return nil, err
	}
	r := &rest{program: p}
	if r.add, err = gpu.ModuleGetFunction(p.module, kernels.AddKernel); err != nil {
		return nil, err
	}
	r.norm, err = gpu.ModuleGetFunction(p.module, kernels.NormKernel)
	return r, err
}

// launch queues both kernels.
func (r *rest) launch(on *symmem.Stream, l *kernels.Local) error {
	params := l.Params()
	blocks, threads := l.AddGrid()
	if err := r.queue(r.add, blocks, threads, on, &params); err != nil {
		return err
	}
	blocks, threads = l.Grid()
	return r.queue(r.norm, blocks, threads, on, &params)
}

// draft is a rank's tensors of one shape. The input and the sums are the lane's buffers.
type draft struct {
	*lane
	args symmem.NormArgs
}

// newDrafts makes tensors for all shapes.
func newDrafts(l *lane, largest int64, hidden int) (*draft, error) {
	pool, err := l.rt.NewPool(symmem.PoolOptions{})
	if err != nil {
		return nil, err
	}
	d := &draft{lane: l}
	for _, t := range []struct {
		to    *symmem.Memory
		bytes int64
	}{
		{&d.args.Output, largest},
		{&d.args.Residual, largest},
		{&d.args.Weight, int64(hidden) * bfloat16Bytes},
	} {
		b, err := pool.Alloc(t.bytes)
		if err != nil {
			return nil, err
		}
		*t.to = b.Memory()
	}
	d.args.Input, d.args.Epsilon = l.send.Memory(), 1e-5
	return d, nil
}

// of is the draft of a shape.
func (d *draft) of(rows, hidden int) *draft {
	shaped := &draft{lane: d.lane, args: d.args}
	shaped.args.Rows, shaped.args.Hidden = int64(rows), int64(hidden)
	return shaped
}

// steps queues the all-reduce, and the kernels for the rest.
func (d *draft) steps(ctx context.Context, r *rest) error {
	a, s := &d.args, d.rt.DefaultStream()
	err := d.rt.World().AllReduce(ctx, a.Input, d.recv.Memory(), a.Rows*a.Hidden, symmem.BFloat16,
		symmem.Sum, s)
	if err != nil {
		return err
	}
	return r.launch(s, &kernels.Local{
		Norm: driver.Norm{
			Rows: a.Rows, Hidden: a.Hidden, Epsilon: a.Epsilon, Residual: a.Residual.Address(),
			Weight: a.Weight.Address(),
		},
		Send: d.recv.Memory().Address(), Recv: a.Output.Address(),
	})
}

// compare makes sure that both ways give the same residual, and outputs that are alike. It leaves
// zeros: what adds up to itself again and again would overflow.
func (d *draft) compare(ctx context.Context, fused, steps func() error) error {
	var residuals, outputs [2][]uint16
	for i, way := range []func() error{fused, steps} {
		if err := d.fill(ctx, 1); err != nil {
			return err
		}
		if err := way(); err != nil {
			return err
		}
		var err error
		if residuals[i], err = d.bits(ctx, d.args.Residual); err != nil {
			return err
		}
		if outputs[i], err = d.bits(ctx, d.args.Output); err != nil {
			return err
		}
	}
	wrong := int64(0)
	for i := range residuals[0] {
		// bfloat16 of one sign lie as their bits do: a bit is one unit in the last place.
		apart := int(outputs[0][i]) - int(outputs[1][i])
		if residuals[0][i] != residuals[1][i] || apart < -1 || apart > 1 {
			wrong++
		}
	}
	all, err := d.gather(ctx, wrong)
	if err != nil {
		return err
	}
	for rank, n := range all {
		if n > 0 {
			return fmt.Errorf("%d elements on rank %d: %w", n, rank, ErrWrong)
		}
	}
	return d.fill(ctx, 0)
}

// fill writes small numbers, times a factor, to all that is read.
func (d *draft) fill(ctx context.Context, factor float32) error {
	s := d.rt.DefaultStream()
	for k, m := range []symmem.Memory{d.args.Input, d.args.Residual, d.args.Weight} {
		n := d.args.Hidden
		if k < 2 {
			n *= d.args.Rows
		}
		values := make([]uint16, n)
		for i := range values {
			v := float32((i*(k+3)+i/7+(1-min(k, 1))*d.rt.Rank())%13-4) * factor
			values[i] = reduce.BFloat16Bits(v)
		}
		to, err := m.Slice(0, int64(len(values))*bfloat16Bytes)
		if err != nil {
			return err
		}
		if err := errors.Join(s.Copy(to, symmem.Host(values)), s.Synchronize(ctx)); err != nil {
			return err
		}
	}
	return s.Fill(d.args.Output, 0xff)
}

// bits reads the elements of a tensor.
func (d *draft) bits(ctx context.Context, m symmem.Memory) ([]uint16, error) {
	got := make([]uint16, d.args.Rows*d.args.Hidden)
	from, err := m.Slice(0, int64(len(got))*bfloat16Bytes)
	if err != nil {
		return nil, err
	}
	s := d.rt.DefaultStream()
	return got, errors.Join(s.Copy(symmem.Host(got), from), s.Synchronize(ctx))
}
