package host

import (
	"context"
	"fmt"

	"symmem/driver"
	"symmem/internal/sys"
)

// Backend opens host devices.
type Backend struct{}

// Name returns "host".
func (Backend) Name() string { return "host" }

// LocalRanks returns the maximum number of ranks in a group.
func (Backend) LocalRanks() (int, error) { return maxRanks, nil }

// Open opens this rank's device and connects it to the other ranks of the machine.
func (Backend) Open(ctx context.Context, cfg driver.Config) (driver.Device, error) {
	d, err := open(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("opening a host device: %w", err)
	}

	return d, nil
}

// NewArena reserves an address range.
func (d *Device) NewArena(bytes int64) (driver.Arena, error) {
	if bytes <= 0 || bytes%granularity != 0 {
		return nil, fmt.Errorf("reserving an arena of %d bytes: the size must be a multiple of %d",
			bytes, granularity)
	}

	addresses, err := sys.Reserve(bytes, granularity)
	if err != nil {
		return nil, err
	}

	return &arena{device: d, addresses: addresses}, nil
}

// NewStream returns a new stream.
func (d *Device) NewStream() (driver.Stream, error) { return &stream{device: d}, nil }

// AdoptStream returns a new stream and ignores the handle.
func (d *Device) AdoptStream(uintptr) (driver.AdoptedStream, error) {
	return &stream{device: d}, nil
}

// NewEvent returns a new event.
func (d *Device) NewEvent() (driver.Event, error) { return &event{}, nil }

// Permute runs like a copy: an idle stream runs it immediately.
func (*Device) Permute(s driver.Stream, p *driver.Permutation) error {
	return queuePermute(s, p)
}

// Unpermute is like Permute.
func (*Device) Unpermute(s driver.Stream, p *driver.Permutation) error {
	return queueUnpermute(s, p)
}
