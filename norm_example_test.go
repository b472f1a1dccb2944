package symmem_test

import (
	"context"
	"errors"
	"fmt"

	"symmem"
)

// If the direct path does not support a norm, every rank gets ErrUnsupported and can make separate
// calls instead.
func ExampleGroup_AllReduceRMSNorm() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		pool, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
		if err != nil {
			return err
		}
		const rows, hidden, bytes = 4, 1024, 4 * 1024 * 2
		var tensors [4]symmem.Memory
		for i := range tensors {
			b, err := pool.Alloc(bytes)
			if err != nil {
				return err
			}
			tensors[i] = b.Memory()
		}
		input, residual, weight := tensors[0], tensors[1], tensors[2]
		err = rt.World().AllReduceRMSNorm(ctx, symmem.NormArgs{
			Input: input, Output: tensors[3], Residual: residual, Weight: weight,
			Rows: rows, Hidden: hidden, Epsilon: 1e-5,
		}, nil)
		if !errors.Is(err, symmem.ErrUnsupported) {
			return err
		}
		err = rt.World().AllReduce(ctx, input, input, rows*hidden, symmem.BFloat16, symmem.Sum, nil)
		if rt.Rank() == 0 {
			fmt.Println("then add and normalize:", err)
		}
		return err
	})
	// Output: then add and normalize: <nil>
}
