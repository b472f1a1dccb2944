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

// bare is a rank at the seam, below the root package: its device joins the ranks anew, and nothing
// agrees, checks or chooses for it.
type bare struct {
	device driver.Device
	comm   driver.Communicator
	arena  driver.Arena
	stream driver.Stream
	leave  io.Closer
	// mapped is where the next segment begins.
	mapped   int64
	segments []driver.Segment
}

// bareArena is more than any bench maps, in bytes.
const bareArena = 1 << 36

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
	if b.arena, err = b.device.NewArena(bareArena); err != nil {
		return err
	}
	b.stream, err = b.device.NewStream()
	return err
}

// segment maps memory for at least so many bytes.
func (b *bare) segment(bytes int64) (driver.Segment, error) {
	unit := b.device.Info().Granularity
	bytes = (bytes + unit - 1) / unit * unit
	s, err := b.arena.Map(b.mapped, bytes)
	if err != nil {
		return nil, err
	}
	b.mapped += bytes
	b.segments = append(b.segments, s)
	return s, nil
}

// register makes a window over a segment. It is collective.
func (b *bare) register(ctx context.Context, s driver.Segment) (driver.Window, error) {
	return b.comm.Register(ctx, driver.SegmentKey{Ordinal: uint32(len(b.segments))}, s)
}

// unmapAll gives all segments back. Their windows are deregistered before.
func (b *bare) unmapAll() error {
	var errs []error
	for _, s := range b.segments {
		errs = append(errs, s.Unmap())
	}
	b.segments, b.mapped = nil, 0
	return errors.Join(errs...)
}

func (b *bare) close() error {
	var errs []error
	if b.stream != nil {
		errs = append(errs, b.stream.Close())
	}
	if b.comm != nil {
		errs = append(errs, b.comm.Close())
	}
	if b.arena != nil {
		errs = append(errs, b.unmapAll(), b.arena.Close())
	}
	if b.device != nil {
		errs = append(errs, b.device.Close())
	}
	return errors.Join(append(errs, b.leave.Close())...)
}
