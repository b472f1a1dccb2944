package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"symmem"
	"symmem/driver"
	"symmem/driver/host"
	"symmem/driver/nccl"
	"symmem/internal/rendezvous"
)

// bare is the baseline where there is no library: the same call at the seam, below the root
// package. Its device joins the ranks anew, and nothing agrees, checks or chooses for it.
type bare struct {
	device driver.Device
	comm   driver.Communicator
	arena  driver.Arena
	stream driver.Stream
	leave  io.Closer
	// segment is memory for both buffers, and window the one over it.
	segment driver.Segment
	window  driver.Window
}

// openBare opens the backend of a Runtime once more. It is collective over the world.
func openBare(ctx context.Context, rt *symmem.Runtime, timeout time.Duration) (*bare, error) {
	var backend driver.Backend = host.Backend{}
	if rt.Device().Backend == (nccl.Backend{}).Name() {
		backend = nccl.Backend{}
	}
	world, err := rendezvous.Discover(os.LookupEnv, rendezvous.Options{})
	if err != nil {
		return nil, err
	}
	store, leave, err := rendezvous.Connect(ctx, world)
	if err != nil {
		return nil, err
	}
	b := &bare{leave: leave}
	if err := b.open(ctx, backend, driver.Config{
		Rank: rt.Rank(), Size: rt.Size(), LocalRank: world.LocalRank, Store: store, Timeout: timeout,
	}); err != nil {
		return nil, errors.Join(fmt.Errorf("opening the seam: %w", err), b.close())
	}
	return b, nil
}

func (b *bare) open(ctx context.Context, backend driver.Backend, c driver.Config) (err error) {
	if b.device, err = backend.Open(ctx, c); err != nil {
		return err
	}
	all := make([]int, c.Size)
	for r := range all {
		all[r] = r
	}
	b.comm, err = b.device.Connect(ctx, driver.GroupConfig{ID: "bare", Ranks: all, Rank: c.Rank})
	if err != nil {
		return err
	}
	if lazy, ok := b.comm.(driver.LazyWindows); ok {
		if err := lazy.UseWindows(ctx); err != nil {
			return err
		}
	}
	if b.stream, err = b.device.NewStream(); err != nil {
		return err
	}
	bytes := b.device.Info().Granularity
	if b.arena, err = b.device.NewArena(bytes); err != nil {
		return err
	}
	if b.segment, err = b.arena.Map(0, bytes); err != nil {
		return err
	}
	b.window, err = b.comm.Register(ctx, driver.SegmentKey{Ordinal: 1}, b.segment)
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
	case symmem.PathWindow:
		call.Path, call.SendWindow, call.RecvWindow = driver.PathWindow, b.window, b.window
	case symmem.PathDirect:
		call.Path, call.SendWindow, call.RecvWindow = driver.PathDirect, b.window, b.window
	default:
	}
	plan, err := driver.Prepare(b.comm, call)
	if err != nil {
		if errors.Is(err, symmem.ErrUnsupported) {
			err = nil // there is no such path
		}
		return nil, err
	}
	return &submission{
		name:   "launch at the seam",
		submit: func() error { return b.comm.Launch(b.stream, plan) },
		wait:   func() error { return b.stream.Synchronize(context.Background()) },
		around: func(batch func() error) error { return batch() },
	}, nil
}

func (b *bare) close() error {
	var errs []error
	if b.window != nil {
		errs = append(errs, b.window.Deregister())
	}
	if b.stream != nil {
		errs = append(errs, b.stream.Close())
	}
	if b.comm != nil {
		errs = append(errs, b.comm.Close())
	}
	if b.segment != nil {
		errs = append(errs, b.segment.Unmap())
	}
	if b.arena != nil {
		errs = append(errs, b.arena.Close())
	}
	if b.device != nil {
		errs = append(errs, b.device.Close())
	}
	return errors.Join(append(errs, b.leave.Close())...)
}
