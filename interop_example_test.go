package symmem_test

import (
	"context"
	"errors"
	"fmt"

	"symmem"
)

// Another library has made a stream, and memory that it names by its address. The stream is adopted
// once, and forgotten before its owner destroys it.
func ExampleInterop_AdoptStream() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		const theirs = 0x5eed // a cudaStream_t on GPUs; on the host any number
		other := rt.Interop()
		s, err := other.AdoptStream(theirs)
		if err != nil {
			return err
		}
		defer other.ForgetStream(s)
		pool, err := rt.NewPool(symmem.PoolOptions{})
		if err != nil {
			return err
		}
		tensor, err := pool.AllocOn(s, 4096)
		if err != nil {
			return err
		}
		m, err := other.Memory(tensor.Address(), 8) // as the other library hands it over
		if err != nil {
			return err
		}
		v := []int64{int64(rt.Rank() + 1)}
		if err := errors.Join(
			s.Copy(m, symmem.Host(v)),
			rt.World().AllReduce(ctx, m, m, 1, symmem.Int64, symmem.Sum, s),
			s.Copy(symmem.Host(v), m),
			s.Synchronize(ctx),
		); err != nil {
			return err
		}
		if rt.Rank() == 0 {
			fmt.Println(v[0], other.Captured(theirs))
		}
		return tensor.Free()
	})
	// Output: 3 false
}

// A binding passes calls on as values, with the places that asked for them: where ranks differ, the
// error names these. Here the ranks call different collectives.
func ExampleInterop_Do() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		m, other := symmem.Host(make([]float32, 2)), rt.Interop()
		other = other.At(other.Site(fmt.Sprintf("model.py:%d", 10+rt.Rank())))
		call := symmem.Call{
			Operation: symmem.OpAllReduce, Type: symmem.Float32, Op: symmem.Sum,
			Count: int64(1 + rt.Rank()), Send: m, Recv: m,
		}
		err := errors.Join(
			other.Do(ctx, rt.World(), call, nil), rt.DefaultStream().Synchronize(ctx))
		var divergence *symmem.DivergenceError
		if !errors.As(err, &divergence) {
			return fmt.Errorf("nobody noticed: %w", err)
		}
		if rt.Rank() == 0 {
			for r := range rt.Size() {
				fmt.Println(r, divergence.Ranks()[r].Site)
			}
		}
		return nil
	})
	// Output:
	// 0 model.py:10
	// 1 model.py:11
}
