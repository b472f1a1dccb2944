package drivertest_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"unsafe"

	"symmem/driver"
	"symmem/driver/drivertest"
	"symmem/internal/control/tcp"
	"symmem/internal/sys"
)

// The small backend is an example for authors of backends. Its ranks run in one process, and
// exchange all data over the TCP connections of the control plane. This file implements a rank's
// device and memory.

func TestSmallBackendPassesContract(t *testing.T) {
	drivertest.Run(t, drivertest.Harness{
		Open: openSmall, Ranks: 5, Paths: []driver.Path{driver.PathPlain},
		Slow: true, // exchanging all inputs takes long
		Missing: map[drivertest.Part]string{
			drivertest.Messages:   "the example omits them",
			drivertest.Splits:     "the example omits them",
			drivertest.Suspension: "the example omits it",
			drivertest.Norms:      "the example omits them",
			drivertest.Routes:     "the example omits them",
			drivertest.Scatter:    "there is no window path, so segment addresses have no effect",
		},
	})
}

// smallDevice is the device of one rank.
type smallDevice struct {
	cfg       driver.Config
	capturing atomic.Int32 // number of capturing streams, which prevent registrations
}

func openSmall(_ context.Context, cfg driver.Config) (driver.Device, error) {
	return &smallDevice{cfg: cfg}, nil
}

const smallGranule = 256 << 10 // unit of memory sizes and offsets

func (d *smallDevice) Info() driver.Info {
	return driver.Info{
		Backend: "small", Name: "a process", Granularity: smallGranule, Addressable: true,
	}
}

func (d *smallDevice) NewArena(bytes int64) (driver.Arena, error) {
	if bytes <= 0 || bytes%smallGranule != 0 {
		return nil, fmt.Errorf("reserving an arena of %d bytes: the size must be a multiple of %d", bytes,
			smallGranule)
	}

	space, err := sys.Reserve(bytes, smallGranule)
	if err != nil {
		return nil, err
	}

	return &smallArena{space: space}, nil
}

func (d *smallDevice) NewStream() (driver.Stream, error) {
	return &smallStream{device: d, tail: closedChannel}, nil // no queued work
}

func (d *smallDevice) NewEvent() (driver.Event, error) {
	e := &smallEvent{}
	// An event that was never recorded is done.
	e.point.Store(&smallPoint{done: closedChannel})
	return e, nil
}

func (d *smallDevice) Connect(
	ctx context.Context, group driver.GroupConfig,
) (driver.Communicator, error) {
	plane, err := tcp.Join(ctx, tcp.Config{
		Store: d.cfg.Store, Group: group, Timeout: d.cfg.Timeout, Late: d.cfg.Late,
	})
	if err != nil {
		return nil, err
	}

	c := &smallGroup{
		device: d, cfg: group, plane: plane, tail: closedChannel,
		windows: map[driver.SegmentKey]*smallWindow{},
	}
	c.check.Store(group.Check)
	return c, nil
}

func (d *smallDevice) Close() error { return nil }

// smallArena is a reserved range of addresses, in which Map maps segments.
type smallArena struct{ space *sys.Mapping }

func (a *smallArena) Address() uintptr { return a.space.Address() }

func (a *smallArena) Map(offset, bytes int64) (driver.Segment, error) {
	isValidSize := bytes > 0 && bytes%smallGranule == 0
	isValidOffset := offset >= 0 && offset%smallGranule == 0
	if !isValidSize || !isValidOffset {
		return nil, fmt.Errorf("mapping %d bytes at offset %d: both must be multiples of %d",
			bytes, offset, smallGranule)
	}

	if total, err := sys.Memory(); err != nil || bytes > total {
		return nil, &driver.OutOfMemoryError{Requested: bytes, Cause: err}
	}

	file, err := sys.Memfd("small-segment", bytes)
	if err != nil {
		return nil, &driver.OutOfMemoryError{Requested: bytes, Cause: err}
	}

	memory, mapErr := a.space.MapAt(offset, file, bytes)
	closeErr := file.Close() // the mapping keeps the memory
	if err := errors.Join(mapErr, closeErr); err != nil {
		return nil, &driver.OutOfMemoryError{Requested: bytes, Cause: err}
	}

	return &smallSegment{Mapping: memory}, nil
}

func (a *smallArena) Keep(bytes int64) error { return a.space.Shrink(bytes) }

func (a *smallArena) Close() error { return a.space.Close() }

type smallSegment struct {
	*sys.Mapping
	unmapped atomic.Bool
}

// Keep need not end the access of peers, because they have none.
func (s *smallSegment) Keep() error { return nil }

func (s *smallSegment) Unmap() error {
	if s.unmapped.Swap(true) {
		return fmt.Errorf("unmapping a segment: %w", driver.ErrClosed)
	}

	return s.Close()
}

// memoryAt returns a slice of the memory at an address.
func memoryAt(address uintptr, bytes int64) []byte {
	// go vet rejects the direct conversion of an integer to a pointer.
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&address)), bytes)
}
