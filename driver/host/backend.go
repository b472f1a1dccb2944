package host

import (
	"context"
	"fmt"

	"symmem/driver"
	"symmem/internal/scatter"
)

// Backend opens host devices.
type Backend struct{}

// Name returns "host".
func (Backend) Name() string { return "host" }

// LocalRanks is how many ranks a group takes.
func (Backend) LocalRanks() (int, error) { return maxRanks, nil }

// Open opens this rank's device and makes it known to the other ranks of the machine.
func (Backend) Open(ctx context.Context, cfg driver.Config) (driver.Device, error) {
	d, err := Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Open is Backend.Open for backends that use the device for planes.
func Open(ctx context.Context, cfg driver.Config) (*Device, error) {
	if cfg.Size < 1 || cfg.Rank < 0 || cfg.Rank >= cfg.Size || cfg.Timeout <= 0 ||
		cfg.Store == nil {
		return nil, fmt.Errorf("opening a host device: rank %d of %d, timeout %v: invalid",
			cfg.Rank, cfg.Size, cfg.Timeout)
	}
	d := &Device{cfg: cfg, info: info(), scatter: scatter.New(cfg.Scatter, cfg.Rank, granularity)}
	if err := d.introduce(ctx); err != nil {
		d.Close()
		return nil, fmt.Errorf("opening a host device: %w", err)
	}
	return d, nil
}
