package host

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/control/shm"
	"symmem/internal/scatter"
	"symmem/internal/sys"
)

// granularity is the unit of segment sizes.
const granularity = sys.PageSize

// Device provides the memory, streams and communicators of one rank.
type Device struct {
	cfg     driver.Config
	info    driver.Info
	machine *shm.Machine
	scatter *scatter.Scatter

	captureCount  atomic.Int32  // number of capturing streams; Register fails unless it is 0
	abandoned     abandonedWork // work that closed streams are still running
	lateStarts    lateStarts    // workers to start for streams for which no caller waits
	groupTimeouts sync.Map      // set of the open groups' timeouts, as *driver.Limit
}

func open(ctx context.Context, cfg driver.Config) (*Device, error) {
	isRankValid := cfg.Rank >= 0 && cfg.Rank < cfg.Size
	isValid := isRankValid && cfg.Timeout > 0 && cfg.Store != nil
	if !isValid {
		return nil, fmt.Errorf("invalid configuration: rank %d of %d, timeout %v, store set: %t",
			cfg.Rank, cfg.Size, cfg.Timeout, cfg.Store != nil)
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

func info() driver.Info {
	return driver.Info{
		Backend:     "host",
		Name:        fmt.Sprintf("%d processors, %s", sys.Cores(), runtime.GOARCH),
		Granularity: granularity,
		Addressable: true,
		CheckIsFree: true,
	}
}

// longestTimeout returns the longest timeout of the device and its open groups.
func (d *Device) longestTimeout() time.Duration {
	longest := d.cfg.Timeout
	for limit := range d.groupTimeouts.Range {
		longest = max(longest, limit.(*driver.Limit).Get())
	}

	return longest
}

// Info describes the device.
func (d *Device) Info() driver.Info { return d.info }

// Close releases all resources.
func (d *Device) Close() error { return d.machine.Close() }

// AdoptCommunicator returns ErrUnsupported.
func (d *Device) AdoptCommunicator(handle uintptr) (driver.AdoptedCommunicator, error) {
	return nil, fmt.Errorf("adopting communicator %#x on the host: %w", handle,
		driver.ErrUnsupported)
}
