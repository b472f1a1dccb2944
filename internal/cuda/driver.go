package cuda

import (
	"fmt"
	"os"

	"symmem/internal/dl"
)

// PathVariable is the environment variable with the path of libcuda.
const PathVariable = "SYMMEM_CUDA"

// Driver calls the functions of libcuda, the library of the CUDA driver. It is immutable and safe
// for concurrent use.
//
// Most functions act on the current context of the calling thread. Device.RetainPrimary returns a
// context. Make it current with SetCurrent on each thread, or use the Driver that InContext
// returns.
type Driver struct {
	table
	memory
	streams
	graphs
	modules
}

func newDriver(t table) *Driver {
	return &Driver{
		table:   t,
		memory:  memory{t},
		streams: streams{t},
		graphs:  graphs{t},
		modules: modules{t},
	}
}

// Load tries paths in order, and initializes the first libcuda that it can open. Without paths, it
// uses $SYMMEM_CUDA, or libcuda.so.1 if the variable is empty.
//
// If no suitable library exists, the error matches ErrNoDriver. If cuInit fails, the error matches
// its Code, such as ErrNoDevice.
func Load(paths ...string) (*Driver, error) {
	if len(paths) == 0 {
		paths = []string{"libcuda.so.1"}
		if path := os.Getenv(PathVariable); path != "" {
			paths = []string{path}
		}
	}

	library, err := dl.Open(paths...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDriver, err)
	}

	t := table{library: library}
	if err := t.findSymbols(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDriver, err)
	}

	d := newDriver(t)
	const noFlags = 0
	if err := d.call(initialize, noFlags); err != nil {
		return nil, err
	}

	return d, nil
}

// Path returns the path of libcuda or, if the path is unknown, the name that Load opened.
func (d *Driver) Path() string { return d.library.Path() }

// Version returns the newest CUDA version that the driver supports, such as 12090 for 12.9.
func (d *Driver) Version() (int, error) {
	version, err := getValue[int32](&d.table, driverGetVersion)
	return int(version), err
}

// DeviceCount returns the number of visible GPUs.
func (d *Driver) DeviceCount() (int, error) {
	count, err := getValue[int32](&d.table, deviceGetCount)
	return int(count), err
}

// Device returns a visible GPU. ordinal counts from 0.
func (d *Driver) Device(ordinal int) (Device, error) {
	handle, err := getValue[int32](&d.table, deviceGet, uintptr(ordinal))
	return Device{driver: d, ordinal: int32(ordinal), handle: handle}, err
}

// Context is a CUDA context (CUcontext). 0 means no context.
type Context uintptr

// SetCurrent makes a context current on the calling thread. 0 removes the current context.
func (d *Driver) SetCurrent(context Context) error {
	return d.call(ctxSetCurrent, uintptr(context))
}

// InContext returns a Driver that makes a context current before each call, so that the goroutine
// need not be locked to a thread. Do not use the Driver for a capture, which needs one thread.
func (d *Driver) InContext(context Context) *Driver {
	t := d.table // a copy
	t.stepBefore = d.ContextStep(context)
	return newDriver(t)
}

// ContextStep returns a Step that makes a context current before a call to any C library.
func (d *Driver) ContextStep(context Context) dl.Step {
	return dl.Step{
		Function: d.symbols[ctxSetCurrent], Argument: uintptr(context),
		NewError: func(status int32) error { return d.newError(ctxSetCurrent, Code(status)) },
	}
}

// Current returns the calling thread's current context, or 0.
func (d *Driver) Current() (Context, error) {
	return getValue[Context](&d.table, ctxGetCurrent)
}

// MemGetInfo returns the free and total memory, in bytes, of the current context's device.
func (d *Driver) MemGetInfo() (free, total int64, err error) {
	freeCell, totalCell := dl.NewCell(int64(0)), dl.NewCell(int64(0))
	err = d.call(memGetInfo, freeCell.Address(), totalCell.Address())
	return freeCell.Take(), totalCell.Take(), err
}
