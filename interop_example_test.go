package symmem_test

import (
	"context"
	"errors"
	"fmt"

	"symmem"
)

// The program adopts a stream of another library, and forgets it before the library destroys it.
func ExampleInterop_AdoptStream() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		const handle = 0x5eed // a cudaStream_t on GPUs, an arbitrary number on the host
		interop := rt.Interop()
		s, err := interop.AdoptStream(handle)
		if err != nil {
			return err
		}
		defer interop.ForgetStream(s)
		pool, err := rt.NewPool(symmem.PoolOptions{})
		if err != nil {
			return err
		}

		tensor, err := pool.AllocOn(s, 4096) // stands for memory of the other library
		if err != nil {
			return err
		}

		const bytes = 8 // of one int64
		m, err := interop.Memory(tensor.Address(), bytes)
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
			fmt.Println(v[0], interop.IsCapturing(handle))
		}

		return tensor.Free()
	})
	// Output: 3 false
}

// A binding of another language passes a Call with the arguments, and a site: the file and line of
// the caller. If the ranks make different calls, the error names their sites.
func ExampleInterop_Do() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		m := symmem.Host(make([]float32, 2))
		interop := rt.Interop()
		site := interop.Site(fmt.Sprintf("model.py:%d", 10+rt.Rank()))
		interop = interop.At(site)
		call := symmem.Call{
			Operation: symmem.OpAllReduce, Type: symmem.Float32, Op: symmem.Sum,
			Count: int64(1 + rt.Rank()), // differs between the ranks
			Send:  m, Recv: m,
		}
		callErr := interop.Do(ctx, rt.World(), call, nil)
		syncErr := rt.DefaultStream().Synchronize(ctx)
		err := errors.Join(callErr, syncErr)
		var divergence *symmem.DivergenceError
		if !errors.As(err, &divergence) {
			return fmt.Errorf("not a divergence: %w", err)
		}

		if rt.Rank() == 0 {
			sides := divergence.Ranks()
			for rank := range rt.Size() {
				fmt.Println(rank, sides[rank].Site)
			}
		}

		return nil
	})
	// Output:
	// 0 model.py:10
	// 1 model.py:11
}
