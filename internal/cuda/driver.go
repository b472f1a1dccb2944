package cuda

import (
	"fmt"
	"os"

	"symmem/internal/dl"
)

// PathVariable names the variable of the environment that says which libcuda to open instead of
// the system's.
const PathVariable = "SYMMEM_CUDA"

// Driver is an initialised libcuda. Each part has the functions of one kind. It is immutable and
// safe for use by several goroutines.
type Driver struct {
	table
	memory
	streams
	graphs
	modules
}

// newDriver returns a driver all of whose parts call the functions of a table.
func newDriver(t table) *Driver {
	return &Driver{t, memory{t}, streams{t}, graphs{t}, modules{t}}
}

// Load opens libcuda and initialises it. Without paths it opens the file that SYMMEM_CUDA names,
// or else the system's libcuda.so.1; the copy that the process has loaded already goes first. It
// needs no context and makes none.
//
// Errors match ErrNoDriver when there is no library, or one that lacks a function, and are an
// *Error when cuInit refuses: ErrNoDevice where there is a driver and no GPU.
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
	if err := functions.find(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDriver, err)
	}
	d := newDriver(functions)
	if err := d.call(initialize, 0); err != nil {
		return nil, err
	}
	return d, nil
}

// Path returns the file of the library.
func (d *Driver) Path() string { return d.library.Path() }

// Version returns the newest version of CUDA that the driver supports, such as 12090 for 12.9.
func (d *Driver) Version() (int, error) {
	version, err := made[int32](&d.table, driverGetVersion)
	return int(version), err
}

// DeviceCount returns the number of GPUs that the process may see (CUDA_VISIBLE_DEVICES).
func (d *Driver) DeviceCount() (int, error) {
	count, err := made[int32](&d.table, deviceGetCount)
	return int(count), err
}

// Device returns the GPU of the given number, counted among those that the process may see.
func (d *Driver) Device(ordinal int) (Device, error) {
	handle, err := made[int32](&d.table, deviceGet, uintptr(ordinal))
	return Device{d, int32(ordinal), handle}, err
}

// Context is CUDA's state of one device in this process; 0 is none.
type Context uintptr

// SetCurrent makes a context that of the calling thread; 0 leaves it without one.
func (d *Driver) SetCurrent(context Context) error {
	return d.call(ctxSetCurrent, uintptr(context))
}

// In returns the driver for use on any thread, which need not be locked for it: each call makes a
// context current on its thread first. C is entered once for both, so that costs much less than
// SetCurrent. Calls that rely on being on the thread of the one before do not go through it.
func (d *Driver) In(context Context) *Driver {
	functions := d.table
	functions.first = d.Entry(context)
	return newDriver(functions)
}

// Entry returns the step that makes a context current, for calls of libraries that work in one.
func (d *Driver) Entry(context Context) dl.Step {
	return dl.Step{
		Function: d.symbols[ctxSetCurrent], Argument: uintptr(context),
		Refused: func(status int32) error { return d.newError(ctxSetCurrent, Code(status)) },
	}
}

// Current returns the context of the calling thread, or 0.
func (d *Driver) Current() (Context, error) {
	return made[Context](&d.table, ctxGetCurrent)
}

// MemGetInfo returns the free and total bytes of the current device's memory. Other processes'
// memory counts as used.
func (d *Driver) MemGetInfo() (free, total int64, err error) {
	f, t := dl.NewCell(int64(0)), dl.NewCell(int64(0))
	err = d.call(memGetInfo, f.Address(), t.Address())
	return f.Take(), t.Take(), err
}
