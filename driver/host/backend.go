package host

import (
	"context"
	"fmt"

	"symmem/driver"
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
