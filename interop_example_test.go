package symmem_test

import (
	"context"
	"errors"
	"fmt"

	"symmem"
)

// Another library has created a stream and passes memory by its address. The program adopts the
// stream once, and must forget it before the library destroys it.
func ExampleInterop_AdoptStream() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		const foreign = 0x5eed // a cudaStream_t on GPUs, and any number on the host
		interop := rt.Interop()
		s, err := interop.AdoptStream(foreign)
		if err != nil {
			return err
		}
		defer interop.ForgetStream(s)
		pool, err := rt.NewPool(symmem.PoolOptions{})
		if err != nil {
			return err
		}

		tensor, err := pool.AllocOn(s, 4096)
		if err != nil {
			return err
		}

		m, err := interop.Memory(tensor.Address(), 8) // the library passes an address
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
			fmt.Println(v[0], interop.IsCapturing(foreign))
		}

		return tensor.Free()
	})
	// Output: 3 false
}

// A binding passes the arguments of a call in a Call, and attributes it to a call site in its own
// language. In this example, the ranks make different calls, and the error names their call sites.
func ExampleInterop_Do() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		m, interop := symmem.Host(make([]float32, 2)), rt.Interop()
		interop = interop.At(interop.Site(fmt.Sprintf("model.py:%d", 10+rt.Rank())))
		call := symmem.Call{
			Operation: symmem.OpAllReduce, Type: symmem.Float32, Op: symmem.Sum,
			Count: int64(1 + rt.Rank()), Send: m, Recv: m,
		}
		err := errors.Join(
			interop.Do(ctx, rt.World(), call, nil), rt.DefaultStream().Synchronize(ctx))
		var divergence *symmem.DivergenceError
		if !errors.As(err, &divergence) {
			return fmt.Errorf("not a divergence: %w", err)
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
