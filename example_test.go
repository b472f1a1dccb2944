package symmem_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"symmem"
)

// world runs a function on two ranks in this process. Real programs call symmem.Open in each of
// their processes, usually without naming a backend.
func world(f func(ctx context.Context, rt *symmem.Runtime) error) {
	worldWith(symmem.Options{Backend: "host"}, f)
}

func worldWith(o symmem.Options, f func(ctx context.Context, rt *symmem.Runtime) error) {
	opening, cancel := context.WithTimeout(context.Background(), time.Minute)
	runtimes, err := symmem.OpenLocal(opening, 2, o)
	cancel()
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	var ranks sync.WaitGroup
	for _, rt := range runtimes {
		ranks.Go(func() {
			err := f(ctx, rt)
			symmem.FreeLive(rt)
			if err := errors.Join(err, rt.Close()); err != nil {
				log.Fatal(err)
			}
		})
	}

	ranks.Wait()
}

// In a process that torchrun, mpirun, srun or symmem launch has started, Open finds the other ranks
// through the environment. Any other process is a world of one rank.
func ExampleOpen() {
	ctx := context.Background()
	rt, err := symmem.Open(ctx, symmem.Options{Size: 1, Backend: "host"})
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Close()
	fmt.Printf("rank %d of %d, ranks compare: %v\n", rt.Rank(), rt.Size(), rt.Check())
	// Output: rank 0 of 1, ranks compare: every
}

// Ranks compare a number. If the numbers differ, the group stays usable; in this example, the ranks
// then use the minimum.
func ExampleGroup_Agree() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		batch := int64(8 + rt.Rank())
		err := rt.World().Agree(ctx, "batch size", batch)
		var differ *symmem.DivergenceError
		if !errors.As(err, &differ) {
			return err
		}

		batch, err = rt.World().Min(ctx, "batch size", batch)
		if rt.Rank() == 0 {
			fmt.Println(differ.Sides[0].Event, "and", differ.Sides[1].Event, "differ: use", batch)
		}

		return err
	})
	// Output: Agree of 8 and Agree of 9 differ: use 8
}

// The end of a scope registers the buffers that were allocated in it. A buffer has the same place
// on every rank.
func ExamplePool_Begin() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		pool, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
		if err != nil {
			return err
		}

		scope := pool.Begin(rt.World())
		defer scope.Abandon()
		weights, err := scope.Alloc(1 << 20)
		if err != nil {
			return err
		}

		if err := scope.End(ctx); err != nil {
			return err
		}

		if rt.Rank() == 1 {
			fmt.Printf("segment %d, offset %d, symmetric: %v\n", weights.Segment(), weights.Offset(),
				rt.World().IsSymmetric(weights.Memory()))
		}

		return weights.Free()
	})
	// Output: segment 0, offset 0, symmetric: true
}

// A pool's buffer can be used without a scope, because the first collective on it registers it.
func ExampleGroup_AllReduce() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		pool, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
		if err != nil {
			return err
		}

		buffer, err := pool.Alloc(4096)
		if err != nil {
			return err
		}

		m, err := buffer.Memory().Slice(0, 8)
		if err != nil {
			return err
		}

		v, s := []float32{float32(rt.Rank() + 1), 10}, rt.DefaultStream()
		if err := errors.Join(
			s.Copy(m, symmem.Host(v)),
			rt.World().AllReduce(ctx, m, m, 2, symmem.Float32, symmem.Sum, s),
			s.Copy(symmem.Host(v), m),
			s.Synchronize(ctx),
		); err != nil {
			return err
		}

		if rt.Rank() == 0 {
			fmt.Println(v, rt.World().Stats().Paths)
		}

		return nil
	})
	// Output: [3 20] map[window:1]
}

// Split creates a group of the ranks that pass the same color. A lower key puts a rank first.
func ExampleGroup_Split() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		reversed, err := rt.World().Split(ctx, 0, -rt.Rank())
		if err != nil {
			return err
		}

		if rt.Rank() == 0 {
			fmt.Printf("group %s: ranks %v, this rank is number %d\n",
				reversed.ID(), reversed.Ranks(), reversed.Rank())
		}

		return reversed.Close()
	})
	// Output: group world/1.0: ranks [1 0], this rank is number 1
}

// A stream can capture work as a graph, which can then be launched many times.
func ExampleStream_BeginCapture() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		v := []int32{1}
		m, s := symmem.Host(v), rt.DefaultStream()
		if err := s.BeginCapture(); err != nil {
			return err
		}

		if err := rt.World().AllReduce(ctx, m, m, 1, symmem.Int32, symmem.Sum, s); err != nil {
			return err
		}

		graph, err := s.EndCapture()
		if err != nil {
			return err
		}

		for range 10 {
			if err := graph.Launch(s); err != nil {
				return err
			}
		}

		if err := s.Synchronize(ctx); err != nil {
			return err
		}

		if rt.Rank() == 0 {
			fmt.Println(v[0])
		}

		return graph.Close()
	})
	// Output: 1024
}

// Explain returns the path of a collective and the reason for it.
func ExampleGroup_Explain() {
	world(func(_ context.Context, rt *symmem.Runtime) error {
		m := symmem.Host(make([]float32, 8))
		why, err := rt.World().Explain(symmem.OpAllReduce, m, m, 8, symmem.Float32)
		if rt.Rank() == 0 {
			fmt.Println(why)
		}

		return err
	})
	// Output: AllReduce: plain path: the send buffer is in no window of the group
}

// Check compares the histories of all ranks. If they differ, every rank gets the same error, which
// names the first event that differs.
func ExampleGroup_Check() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		pool, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World(), FirstSegment: 1 << 21})
		if err != nil {
			return err
		}

		if _, err := pool.Alloc(int64(4096 * (1 + rt.Rank()))); err != nil {
			return err
		}

		var divergence *symmem.DivergenceError
		if !errors.As(rt.World().Check(ctx), &divergence) {
			return errors.New("the divergence was not reported")
		}

		if rt.Rank() == 0 {
			fmt.Println(divergence.Kind, divergence.Position, divergence.Why)
			for r := range rt.Size() {
				fmt.Println(r, divergence.Ranks()[r].Event)
			}
		}

		return nil
	})
	// Output:
	// placement 1 different size
	// 0 alloc 4096 B (stream 0) -> segment 0 offset 0x0
	// 1 alloc 8192 B (stream 0) -> segment 0 offset 0x0
}

// An observer is called when memory is mapped, registered, deregistered or unmapped.
func ExampleInterop_Observe() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		if rt.Rank() == 0 {
			defer rt.Interop().Observe(symmem.Observer{
				SegmentAlloc: func(e symmem.SegmentEvent) { fmt.Println("mapped", e.Bytes>>20, "MiB") },
				Register:     func(e symmem.WindowEvent) { fmt.Println("registered with", e.Group.ID()) },
			})()
		}

		pool, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
		if err != nil {
			return err
		}

		return pool.Reserve(ctx, 100<<20, rt.World())
	})
	// Output:
	// mapped 100 MiB
	// registered with world
}

// Register registers the segments of a pool as windows on all ranks. The end of a scope and the
// first collective on a buffer also register memory.
func ExamplePool_Register() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		pool, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
		if err != nil {
			return err
		}

		weights, err := pool.Alloc(1 << 20)
		if err != nil {
			return err
		}

		before := rt.World().IsSymmetric(weights.Memory())
		if err := pool.Register(ctx, rt.World()); err != nil {
			return err
		}

		if rt.Rank() == 0 {
			fmt.Println(before, rt.World().IsSymmetric(weights.Memory()))
			for s := range pool.Segments() {
				fmt.Println("segment", s.Segment, "of", s.Bytes>>20, "MiB")
			}
		}

		return weights.Free()
	})
	// Output:
	// false true
	// segment 0 of 64 MiB
}

// Every rank of a group sends to the next rank and receives from the previous one.
func ExampleGroup_Send() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		g, s := rt.World(), rt.DefaultStream()
		next, previous := (g.Rank()+1)%g.Size(), (g.Rank()+g.Size()-1)%g.Size()
		sent, received := []int32{int32(100 + g.Rank())}, []int32{0}
		if err := errors.Join(
			g.Send(ctx, symmem.Host(sent), 1, symmem.Int32, next, s),
			g.Recv(ctx, symmem.Host(received), 1, symmem.Int32, previous, s),
			s.Synchronize(ctx),
		); err != nil {
			return err
		}

		if g.Rank() == 0 {
			fmt.Println("received", received[0], "from rank", previous)
		}

		return nil
	})
	// Output: received 101 from rank 1
}

// After a fault every call of the group fails. Every rank gets the same error, which names the
// ranks at fault. In this example, rank 1 never calls Barrier.
func ExampleGroup_Err() {
	short := symmem.Options{Backend: "host", Timeout: time.Second}
	worldWith(short, func(ctx context.Context, rt *symmem.Runtime) error {
		g := rt.World()
		var err error
		if rt.Rank() == 0 {
			err = errors.Join(g.Barrier(ctx, nil), rt.DefaultStream().Synchronize(ctx))
		} else {
			<-g.Ended()
			err = g.Err()
		}

		var late *symmem.TimeoutError
		if !errors.As(err, &late) {
			return fmt.Errorf("not a timeout: %w", err)
		}

		if rt.Rank() == 0 {
			fmt.Println("missing:", late.Missing)
		}

		return nil
	})
	// Output: missing: [1]
}
