package symmem_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"time"

	"symmem"
)

// Most examples run on the two ranks of a world. The functions world and worldWith open it, call a
// function on each rank at the same time, and close it.

// Rank 0 sends one element to itself and two to rank 1. Rank 1 sends three elements to rank 0 and
// four to itself.
func ExampleGroup_AllToAllV() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		counts := [][]int64{{1, 2}, {3, 4}} // counts[i][j] elements from rank i to rank j
		sendByRank := [][]float32{
			{0, 10, 11},                  // one element for rank 0, then two for rank 1
			{20, 21, 22, 30, 31, 32, 33}, // three elements for rank 0, then four for rank 1
		}
		rank := rt.Rank()
		sendCounts := counts[rank]
		recvCounts := []int64{counts[0][rank], counts[1][rank]}
		splits := symmem.Contiguous(sendCounts, recvCounts)
		send := sendByRank[rank]
		recv := make([]float32, recvCounts[0]+recvCounts[1])
		s := rt.DefaultStream()
		err := rt.World().AllToAllV(
			ctx, symmem.Host(send), symmem.Host(recv), splits, symmem.Float32, s)
		if err != nil {
			return err
		}

		if err := s.Synchronize(ctx); err != nil {
			return err
		}

		if rank == 1 {
			fmt.Println(recv)
		}

		return nil
	})
	// Output: [10 11 30 31 32 33]
}

// Rank 1 sends its rank to rank 0, which accepts messages with this tag from any rank.
func ExampleGroup_SendTagged() {
	const (
		count     = 1 // elements of the message
		receiver  = 0 // rank
		resultTag = 7 // distinguishes this message from others
	)
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		g := rt.World()
		s := rt.DefaultStream()
		v := []float32{float32(rt.Rank())}
		m := symmem.Host(v)
		if rt.Rank() != receiver {
			err := g.SendTagged(ctx, m, count, symmem.Float32, receiver, resultTag, s)
			if err != nil {
				return err
			}

			return s.Synchronize(ctx)
		}

		err := g.RecvTagged(ctx, m, count, symmem.Float32, symmem.AnySource, resultTag, s)
		if err != nil {
			return err
		}

		if err := s.Synchronize(ctx); err != nil {
			return err
		}

		fmt.Println("got", v)
		return nil
	})
	// Output: got [1]
}

// An event marks a point in a stream. Other streams and the host can wait for it.
func ExampleEvent() {
	rt, err := symmem.Open(context.Background(), symmem.Options{Size: 1, Backend: "host"})
	if err != nil {
		log.Fatal(err)
	}

	other, err := rt.NewStream()
	if err != nil {
		log.Fatal(err)
	}

	copied, err := rt.NewEvent() // marks the end of the copy from a to b
	if err != nil {
		log.Fatal(err)
	}

	a := []int32{1, 2}
	b := make([]int32, 2)
	c := make([]int32, 2)
	err = errors.Join( // makes all calls, also after an error
		rt.DefaultStream().Copy(symmem.Host(b), symmem.Host(a)),
		rt.DefaultStream().Record(copied),
		other.Wait(copied), // later work on other sees the new contents of b
		other.Copy(symmem.Host(c), symmem.Host(b)),
		other.Synchronize(context.Background()),
	)
	isDone := copied.Done()
	closeErr := rt.Close()
	fmt.Println(c, isDone, err, closeErr)
	// Output: [1 2] true <nil> <nil>
}

// On the host backend a program can access a buffer as a slice.
func ExampleView() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		pool, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
		if err != nil {
			return err
		}

		buffer, err := pool.Alloc(8) // two float32; the buffer may be larger
		if err != nil {
			return err
		}

		v, err := symmem.View[float32](buffer)
		if err != nil {
			return err
		}

		v[0] = float32(rt.Rank()) // the sum over ranks 0 and 1 is 0+1
		v[1] = 5                  // the sum is 5+5
		m := buffer.Memory()
		s := rt.DefaultStream()
		err = rt.World().AllReduce(ctx, m, m, 2, symmem.Float32, symmem.Sum, s)
		if err != nil {
			return err
		}

		if err := s.Synchronize(ctx); err != nil {
			return err
		}

		if rt.Rank() == 0 {
			fmt.Println(v[:2])
		}

		return buffer.Free()
	})
	// Output: [1 10]
}

// The memory of freed buffers stays mapped for later buffers until Trim releases it.
func ExamplePool_Trim() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		pool, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
		if err != nil {
			return err
		}

		buffer, err := pool.Alloc(1 << 20)
		if err != nil {
			return err
		}

		if err := buffer.Free(); err != nil {
			return err
		}

		before := pool.Stats().Segments
		const keepBytes = 0
		err = pool.Trim(ctx, keepBytes) // all ranks of the domain must call Trim
		if err != nil {
			return err
		}

		if rt.Rank() == 0 {
			fmt.Printf("segments: %d, then %d\n", before, pool.Stats().Segments)
		}

		return nil
	})
	// Output: segments: 1, then 0
}

// Rank 0 waits in a Barrier for rank 1, and warns about it long before the wait would time out.
// Rank 1 calls Barrier after the warning.
func ExampleOptions_onLate() {
	warned := make(chan symmem.LateWarning, 1)
	onLate := func(w symmem.LateWarning) { // each rank may call it, and more than once
		if !slices.Equal(w.Ranks, []int{1}) {
			return
		}

		select {
		case warned <- w:
		default: // the channel already holds a warning
		}
	}
	options := symmem.Options{Backend: "host", WarnAfter: time.Millisecond, OnLate: onLate}
	worldWith(options, func(ctx context.Context, rt *symmem.Runtime) error {
		if rt.Rank() == 1 {
			w := <-warned
			fmt.Println("rank 0 waits for", w.Ranks)
		}

		if err := rt.World().Barrier(ctx, rt.DefaultStream()); err != nil {
			return err
		}

		return rt.DefaultStream().Synchronize(ctx)
	})
	// Output: rank 0 waits for [1]
}

// Each rank allocates another size, so the ranks diverge. All get the same error, which describes
// the first event that differs. A Side lists the ranks that have the same event.
func ExampleDivergenceError() {
	world(func(ctx context.Context, rt *symmem.Runtime) error {
		pool, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
		if err != nil {
			return err
		}

		bytes := int64(4096)
		if rt.Rank() == 1 {
			bytes = 8192 // differs from rank 0
		}

		if _, err := pool.Alloc(bytes); err != nil {
			return err
		}

		err = rt.World().Check(ctx)
		var divergence *symmem.DivergenceError
		if !errors.As(err, &divergence) {
			return err
		}

		if rt.Rank() == 0 {
			fmt.Println(divergence.Kind, "at event", divergence.Position)
			for _, side := range divergence.Sides {
				fmt.Println("ranks", side.Ranks, "have", side.Event)
			}
		}

		return nil
	})
	// Output:
	// placement at event 1
	// ranks [0] have alloc 4096 B (stream 0) -> segment 0 offset 0x0
	// ranks [1] have alloc 8192 B (stream 0) -> segment 0 offset 0x0
}
