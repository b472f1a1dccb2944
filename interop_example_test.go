package symmem_test

import (
	"context"
	"errors"
	"fmt"

	"symmem"
)

// AdoptStream makes a stream of another library usable here. ForgetStream must be called before
// that library destroys the stream.
func ExampleInterop_AdoptStream() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		const handle = 0x5eed // stands for a cudaStream_t; the host backend accepts any number
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

		const count, elementBytes = 1, 8 // of int64
		m, err := interop.Memory(tensor.Address(), count*elementBytes)
		if err != nil {
			return err
		}

		numbers := []int64{int64(rt.Rank() + 1)}
		if err := errors.Join(
			s.Copy(m, symmem.Host(numbers)),
			rt.World().AllReduce(ctx, m, m, count, symmem.Int64, symmem.Sum, s),
			s.Copy(symmem.Host(numbers), m),
			s.Synchronize(ctx),
		); err != nil {
			return err
		}

		if rt.Rank() == 0 {
			fmt.Printf("sum %d, capturing %t\n", numbers[0], interop.IsCapturing(handle))
		}

		return tensor.Free()
	})
	// Output: sum 3, capturing false
}

// A binding for another language passes a Call to Do, and the file and line of its caller to At. If
// ranks make different calls, the error names the line on each rank.
func ExampleInterop_Do() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		m := symmem.Host(make([]float32, 2))
		line := 10 + rt.Rank() // arbitrary, but different on each rank
		site := rt.Interop().Site(fmt.Sprintf("model.py:%d", line))
		interop := rt.Interop().At(site)
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
			sidesByRank := divergence.Ranks()
			for rank := range rt.Size() {
				fmt.Println(rank, sidesByRank[rank].Site)
			}
		}

		return nil
	})
	// Output:
	// 0 model.py:10
	// 1 model.py:11
}
