package host

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control/shm"
	"symmem/internal/scatter"
	"symmem/internal/sys"
)

// granularity is the unit of segment sizes: a huge page.
const granularity = sys.PageSize

// Device represents the memory and streams of one rank.
//
// States: open; closed. A capture in progress forbids registration on the whole device, as CUDA's
// global capture mode does.
type Device struct {
	cfg     driver.Config
	info    driver.Info
	machine *shm.Machine
	scatter *scatter.Scatter
	// capturing counts the capturing streams.
	capturing atomic.Int32
	left      leftWork
}

// open opens the device and connects to the other ranks of the machine.
func open(ctx context.Context, cfg driver.Config) (*Device, error) {
	if cfg.Size < 1 || cfg.Rank < 0 || cfg.Rank >= cfg.Size || cfg.Timeout <= 0 ||
		cfg.Store == nil {
		return nil, fmt.Errorf("rank %d of %d, timeout %v: invalid", cfg.Rank, cfg.Size, cfg.Timeout)
	}
	machine, err := shm.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &Device{
		cfg: cfg, machine: machine, info: info(),
		scatter: scatter.New(cfg.Scatter, cfg.Rank, granularity),
	}, nil
}

// info returns the description of a device.
func info() driver.Info {
	return driver.Info{
		Backend:     "host",
		Name:        fmt.Sprintf("%d processors, %s", sys.Cores(), runtime.GOARCH),
		Granularity: granularity,
		Addressable: true,
		CheckIsFree: true,
	}
}

// Info describes the device.
func (d *Device) Info() driver.Info { return d.info }

// Close releases all resources.
func (d *Device) Close() error { return d.machine.Close() }

// AdoptCommunicator returns ErrUnsupported: no other library has communicators over host memory.
func (d *Device) AdoptCommunicator(handle uintptr) (driver.AdoptedCommunicator, error) {
	return nil, fmt.Errorf("adopting communicator %#x on the host: %w", handle, driver.ErrUnsupported)
}
