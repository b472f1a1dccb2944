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
	"symmem/internal/ranked"
	"symmem/internal/scatter"
	"symmem/internal/sys"
)

// Device provides the memory, streams and communicators of one rank.
type Device struct {
	cfg     driver.Config
	info    driver.Info
	machine *shm.Machine
	scatter *scatter.Scatter

	capturingCount atomic.Int32 // number of capturing streams
	abandonedWork  abandonedWork
	lateStarts     lateStarts
	groupTimeouts  sync.Map // set of the *driver.Limit of open groups
}

// granularity is the unit of segment sizes.
const granularity = sys.PageSize

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
		cfg: cfg, machine: machine, info: newInfo(),
		scatter: scatter.New(cfg.Scatter, cfg.Rank, granularity),
	}, nil
}

func newInfo() driver.Info {
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

// AdoptCommunicator returns ErrUnsupported.
func (d *Device) AdoptCommunicator(handle uintptr) (driver.AdoptedCommunicator, error) {
	return nil, fmt.Errorf("adopting communicator %#x on the host: %w", handle,
		driver.ErrUnsupported)
}

// Close releases all resources.
func (d *Device) Close() error { return d.machine.Close() }

// longestTimeout returns the longest timeout of the device and its open groups.
func (d *Device) longestTimeout() time.Duration {
	longest := d.cfg.Timeout
	for limit := range d.groupTimeouts.Range {
		longest = max(longest, limit.(*driver.Limit).Get())
	}

	return longest
}

// abandonedWork is the running work of streams whose Close timed out. It delays unmaps, because the
// work may access the memory.
type abandonedWork struct {
	mu            ranked.Mutex[abandonedMu] // guards all fields
	streamCount   int
	delayedUnmaps []func() error // called in order when streamCount drops to 0
}

func (a *abandonedWork) isRunning() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.streamCount > 0
}

// unmapAfterWork calls unmap, or delays it until all abandoned work has ended.
func (a *abandonedWork) unmapAfterWork(unmap func() error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.streamCount == 0 {
		return unmap()
	}

	a.delayedUnmaps = append(a.delayedUnmaps, unmap)
	return nil
}

// add adds the work of a closed stream. The channel must be closed when the work ends.
func (a *abandonedWork) add(ended <-chan struct{}) {
	a.mu.Lock()
	a.streamCount++
	a.mu.Unlock()
	go func() {
		<-ended
		a.removeStream()
	}()
}

func (a *abandonedWork) removeStream() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.streamCount--
	if a.streamCount > 0 {
		return
	}

	for _, unmap := range a.delayedUnmaps {
		_ = unmap() // the caller of unmapAfterWork has already returned
	}

	a.delayedUnmaps = nil
}

// lateStarts delays the workers of lazy streams, so that a waiting caller can run the work instead.
type lateStarts struct {
	mu     ranked.Mutex[lateStartsMu]
	starts []func() // guarded by mu
}

// lateStartDelay is the longest delay of a worker.
const lateStartDelay = time.Millisecond

// add arranges that start is called within lateStartDelay.
func (l *lateStarts) add(start func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.starts) == 0 {
		time.AfterFunc(lateStartDelay, l.startAll)
	}

	l.starts = append(l.starts, start)
}

func (l *lateStarts) startAll() {
	l.mu.Lock()
	starts := l.starts
	l.starts = nil
	l.mu.Unlock()
	for _, start := range starts {
		start()
	}
}
