package cuda

import (
	"fmt"
	"os"

	"symmem/internal/dl"
)

// PathVariable is the environment variable that holds the path of libcuda.
const PathVariable = "SYMMEM_CUDA"

// Driver calls the functions of libcuda, the library of the CUDA driver. It is immutable and safe
// for concurrent use.
//
// Most functions use the current context of the calling thread. For example, a program gets the
// context of the first GPU by Device(0) and RetainPrimary. It then calls SetCurrent on each thread,
// or uses the Driver that InContext returns.
type Driver struct {
	// The methods are divided into embedded types by subject. All have the same table of functions.

	table
	memory
	streams
	graphs
	modules
}

func newDriver(functions table) *Driver {
	return &Driver{
		table:   functions,
		memory:  memory{functions},
		streams: streams{functions},
		graphs:  graphs{functions},
		modules: modules{functions},
	}
}

// Load opens and initialises libcuda. It uses the first of paths that can be opened. Without
// paths, it uses $SYMMEM_CUDA or, if this variable is empty, libcuda.so.1. If the process has
// already loaded a library of that name, Load uses the loaded one. It needs no CUDA context.
//
// If there is no suitable library, the error matches ErrNoDriver. If the initialisation (cuInit)
// fails, the error matches cuInit's Code, such as ErrNoDevice.
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

	functions := table{library: library}
	if err := functions.findSymbols(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDriver, err)
	}

	d := newDriver(functions)
	const noFlags = 0
	if err := d.call(initialize, noFlags); err != nil {
		return nil, err
	}

	return d, nil
}

// Path returns the path of libcuda, or its name if the path is unknown.
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

// Device returns a visible GPU. ordinal counts visible GPUs from 0.
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

// InContext returns a Driver that makes a context current before each call, on the same thread. Its
// callers can therefore be goroutines, which may change threads between two calls. Do not use it
// for calls that must run on the same thread as an earlier call.
func (d *Driver) InContext(context Context) *Driver {
	functions := d.table // a copy, which does not change d
	functions.stepBefore = d.ContextStep(context)
	return newDriver(functions)
}

// ContextStep returns a step for dl.Symbol.CallAfterStep, which makes a context current and then
// calls a function on the same thread. The function can belong to any C library.
func (d *Driver) ContextStep(context Context) dl.Step {
	return dl.Step{
		Function: d.symbols[ctxSetCurrent], Argument: uintptr(context),
		NewError: func(status int32) error { return d.newError(ctxSetCurrent, Code(status)) },
	}
}

// Current returns the calling thread's context, or 0.
func (d *Driver) Current() (Context, error) {
	return getValue[Context](&d.table, ctxGetCurrent)
}

// MemGetInfo returns the free and total memory, in bytes, of the current context's device.
func (d *Driver) MemGetInfo() (free, total int64, err error) {
	freeCell, totalCell := dl.NewCell(int64(0)), dl.NewCell(int64(0))
	err = d.call(memGetInfo, freeCell.Address(), totalCell.Address())
	return freeCell.Take(), totalCell.Take(), err
}
