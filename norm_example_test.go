package symmem_test

import (
	"context"
	"errors"
	"fmt"

	"symmem"
)

// If GPUs cannot access each other's memory, every rank gets ErrUnsupported and runs the steps
// separately.
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
		fused := !errors.Is(err, symmem.ErrUnsupported)
		if !fused { // add the residual and normalize after this call
			err = rt.World().AllReduce(ctx, input, input, rows*hidden, symmem.BFloat16, symmem.Sum, nil)
		}

		if rt.Rank() == 0 {
			fmt.Println("fused:", fused)
		}

		return err
	})
	// Output: fused: true
}
