// Command allreduce sums a vector over all ranks. Start it with symmem launch.
package main

import (
	"context"
	"fmt"
	"log"

	"symmem"
)

func main() {
	ctx := context.Background()
	rt, err := symmem.Open(ctx, symmem.Options{}) // connects to the other ranks
	if err != nil {
		log.Fatal(err)
	}

	vector := make([]float32, 1<<18)
	vector[0] = float32(rt.Rank() + 1)
	if err := add(ctx, rt, vector); err != nil {
		log.Fatal(err)
	}

	fmt.Println("rank", rt.Rank(), "sum", vector[0])
	if err := rt.Close(); err != nil {
		log.Fatal(err)
	}
}

// add replaces a vector with the sum of all ranks' vectors.
func add(ctx context.Context, rt *symmem.Runtime, vector []float32) error {
	pool, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
	if err != nil {
		return err
	}

	x, err := pool.Alloc(1 << 20) // 1 MiB at the same place on every rank
	if err != nil {
		return err
	}
	defer x.Free()
	m, stream := x.Memory(), rt.DefaultStream()
	if err := stream.Copy(m, symmem.Host(vector)); err != nil {
		return err
	}

	if err := rt.World().AllReduce(ctx, m, m, 1<<18, symmem.Float32, symmem.Sum, stream); err != nil {
		return err
	}

	if err := stream.Copy(symmem.Host(vector), m); err != nil {
		return err
	}

	return stream.Synchronize(ctx) // waits for the sum, or returns an error
}
