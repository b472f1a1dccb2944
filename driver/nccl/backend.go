package nccl

import (
	"context"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/kernels"
	"symmem/internal/nccl"
)

// Backend implements driver.Backend for NVIDIA GPUs.
type Backend struct{}

// Name returns "nccl".
func (Backend) Name() string { return "nccl" }

// Available returns nil if this machine has a GPU and NCCL. If it does not, Available returns an
// error that says what is missing. Available creates no CUDA context.
func (Backend) Available() error {
	driver, err := loadDriver()
	if err != nil {
		return err
	}

	n, err := driver.DeviceCount()
	if err != nil {
		return err
	}

	if n == 0 {
		return errors.New("the CUDA driver finds no GPU")
	}

	_, err = nccl.Load()
	return err
}

// LocalRanks returns the number of GPUs visible to this process.
func (Backend) LocalRanks() (int, error) {
	library, err := loadDriver()
	if err != nil {
		return 0, withAdvice(err)
	}

	return library.DeviceCount()
}

// Open opens the GPU of this rank. If cfg.Device is not set, Open chooses the GPU by cfg.LocalRank.
func (Backend) Open(ctx context.Context, cfg driver.Config) (driver.Device, error) {
	if cfg.Size < 1 || cfg.Rank < 0 || cfg.Rank >= cfg.Size || cfg.LocalRank < 0 ||
		cfg.Timeout <= 0 || cfg.Store == nil {
		return nil, fmt.Errorf("opening a GPU: invalid configuration: rank %d of %d, local rank %d, "+
			"timeout %v", cfg.Rank, cfg.Size, cfg.LocalRank, cfg.Timeout)
	}

	d := &Device{
		cfg: cfg, communicators: map[*communicator]struct{}{},
		collectives: gpu.Code{CubinFuncs: []gpu.CubinFunc{
			kernels.Object, kernels.RowsObject, kernels.NormObject,
			kernels.RouteObject,
		}},
	}
	d.members.cfg = &d.cfg
	if err := d.open(ctx); err != nil {
		// Publish the error, so that the other ranks do not wait for this one.
		err = errors.Join(fmt.Errorf("opening a GPU: %w", err),
			d.publish(ctx, &member{OpenError: err.Error()}))
		return nil, errors.Join(err, d.Close())
	}

	return d, nil
}
