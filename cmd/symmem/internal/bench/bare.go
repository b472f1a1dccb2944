package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"symmem"
	"symmem/driver"
	"symmem/driver/host"
	"symmem/internal/rendezvous"
)

// bare is the baseline on the host, where there is no library: the same call at the seam, below the
// root package. Its device joins the ranks anew, and nothing agrees, checks or chooses for it.
type bare struct {
	comm   driver.Communicator
	stream driver.Stream
	// segment is memory for both buffers, and window the one over it.
	segment driver.Segment
	window  driver.Window
	// opened is what there is to close, in order.
	opened []func() error
}

// openBare opens the backend of a Runtime once more. It is collective over the world.
func openBare(ctx context.Context, rt *symmem.Runtime, timeout time.Duration) (*bare, error) {
	b := &bare{}
	if err := b.open(ctx, rt, timeout); err != nil {
		return nil, errors.Join(fmt.Errorf("opening the seam: %w", err), b.close())
	}
	return b, nil
}

func (b *bare) open(ctx context.Context, rt *symmem.Runtime, timeout time.Duration) error {
	world, err := rendezvous.Discover(os.LookupEnv, rendezvous.Options{})
	if err != nil {
		return err
	}
	store, leave, err := rendezvous.Connect(ctx, world)
	if err != nil {
		return err
	}
	b.opened = append(b.opened, leave.Close)
	device, err := host.Backend{}.Open(ctx, driver.Config{
		Rank: rt.Rank(), Size: rt.Size(), LocalRank: world.LocalRank, Store: store, Timeout: timeout,
	})
	if err != nil {
		return err
	}
	b.opened = append(b.opened, device.Close)
	bytes := device.Info().Granularity
	arena, err := device.NewArena(bytes)
	if err != nil {
		return err
	}
	b.opened = append(b.opened, arena.Close)
	if b.segment, err = arena.Map(0, bytes); err != nil {
		return err
	}
	b.opened = append(b.opened, b.segment.Unmap)
	all := make([]int, rt.Size())
	for r := range all {
		all[r] = r
	}
	b.comm, err = device.Connect(ctx, driver.GroupConfig{ID: "bare", Ranks: all, Rank: rt.Rank()})
	if err != nil {
		return err
	}
	b.opened = append(b.opened, b.comm.Close)
	if b.stream, err = device.NewStream(); err != nil {
		return err
	}
	b.opened = append(b.opened, b.stream.Close)
	b.window, err = b.comm.Register(ctx, driver.SegmentKey{Ordinal: 1}, b.segment)
	if err == nil {
		b.opened = append(b.opened, b.window.Deregister)
	}
	return err
}

// apart is the distance of the two buffers in bytes.
const apart = 4096

func (b *bare) submission(path symmem.PathChoice) (*submission, error) {
	at := b.segment.Address()
	call := driver.Call{
		Operation: driver.AllReduce, DataType: driver.Float32, ReduceOp: driver.Sum,
		Count: submitCount, Send: at, Recv: at + apart,
	}
	switch path {
	case symmem.PathDirect:
		return nil, nil // which the host has not
	case symmem.PathWindow:
		call.Path, call.SendWindow, call.RecvWindow = driver.PathWindow, b.window, b.window
	default:
	}
	plan, err := driver.Prepare(b.comm, call)
	return &submission{
		name:   "launch at the seam",
		submit: func() error { return b.comm.Launch(b.stream, plan) },
		wait:   func() error { return b.stream.Synchronize(context.Background()) },
		around: func(batch func() error) error { return batch() },
	}, err
}

func (b *bare) close() error {
	var errs []error
	for _, shut := range slices.Backward(b.opened) {
		errs = append(errs, shut())
	}
	return errors.Join(errs...)
}
